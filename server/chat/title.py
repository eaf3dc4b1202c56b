"""Titles: a short line from a first question, cut between characters as people see them. It asks no model.

Zero-width joiners are part of words (Persian half-spaces) and of emoji: they stay, but none is left dangling at a cut.
"""
import re
import unicodedata

MAX_AUTO, MAX_TITLE = 60, 200  # graphemes of a title made from a question; characters of one that a person typed
JOINERS = "\u200c\u200d"
VIRAMA = 9  # the combining class of the sign that ties a letter to the next one (Devanagari, Bengali, …)
# Direction characters would turn what stands beside the title, too.
_BIDI = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_SPACE = re.compile(r"[\s\x00-\x1f\x7f-\x9f]+")


def clean(text: str) -> str:
    """One line without control and direction characters."""
    return _SPACE.sub(" ", _BIDI.sub("", text)).strip()


def title_of(question: str) -> str:
    """The beginning of a question: at most MAX_AUTO graphemes, to a word's end if one is in the second half."""
    text = clean(question[: MAX_AUTO * 40])
    clusters = graphemes(text)
    if len(clusters) <= MAX_AUTO and len(question) <= MAX_AUTO * 40:
        return text
    cut = "".join(clusters[: MAX_AUTO - 1])
    space = cut.rfind(" ")
    if space > len(cut) // 2:
        cut = cut[:space]
    return cut.rstrip(JOINERS + " ") + "…"


def graphemes(text: str) -> list[str]:
    """Clusters after the main rules of Unicode's annex 29: marks, joiners, conjuncts, modifiers, flags, Hangul."""
    clusters: list[str] = []
    for character in text:
        if clusters and _joins(clusters[-1], character):
            clusters[-1] += character
        else:
            clusters.append(character)
    return clusters


def _joins(cluster: str, character: str) -> bool:
    code, last = ord(character), cluster[-1]
    if unicodedata.category(character) in ("Mn", "Me", "Mc") or character in JOINERS:
        return True
    if 0x1F3FB <= code <= 0x1F3FF or 0xE0020 <= code <= 0xE007F:  # skin tones; the letters inside a regional flag
        return True
    if unicodedata.combining(cluster.rstrip(JOINERS)[-1:] or " ") == VIRAMA and unicodedata.category(character) == "Lo":
        return True  # a conjunct: one character to those who read it
    if last == "\u200d" and len(cluster) > 1 and unicodedata.category(character) == "So":
        return True
    if _is_regional(code) and _is_regional(ord(last)):
        return len(cluster) % 2 == 1
    return 0x1160 <= code <= 0x11FF and (0x1100 <= ord(last) <= 0x11FF or 0xAC00 <= ord(last) <= 0xD7A3)


def _is_regional(code: int) -> bool:
    return 0x1F1E6 <= code <= 0x1F1FF
