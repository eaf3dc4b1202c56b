"""Titles: short, on one line, and never cut inside what a reader sees as one character."""
import pytest

from hamdam.server.chat.title import JOINERS, MAX_AUTO, clean, graphemes, title_of

FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"


def test_a_short_question_is_its_own_title() -> None:
    assert title_of("What is the capital of France?") == "What is the capital of France?"
    assert title_of("  two\n\nlines\t") == "two lines"
    assert title_of("") == ""


def test_a_long_question_is_cut_at_a_word() -> None:
    title = title_of("word " * 40)
    assert title.endswith("word…")
    assert len(graphemes(title)) <= MAX_AUTO


def test_a08_the_persian_half_space_stays_in_a_title() -> None:
    assert title_of("می‌روم کتاب‌ها را بیاورم") == "می‌روم کتاب‌ها را بیاورم"


CLUSTERS = {
    "family": FAMILY, "half-space": "ی\u200c", "accent": "e\u0301", "flag": "🇮🇷", "skin tone": "👍🏽",
    "tag flag": "\U0001f3f4\U000e0067\U000e0062\U000e007f", "hangul": "\u1100\u1161\u11a8", "thai": "ก็",
    "variation": "❤\ufe0f", "conjunct": "क्ष", "joined conjunct": "र्\u200dय",
}  # fmt: skip


@pytest.mark.parametrize("cluster", CLUSTERS.values(), ids=CLUSTERS.keys())
@pytest.mark.parametrize("before", range(8))
def test_a08_no_cut_falls_inside_a_grapheme_or_leaves_a_joiner(cluster: str, before: int) -> None:
    title = title_of("x" * before + cluster * 200)
    assert title.endswith("…")
    body = title[:-1].removeprefix("x" * before)
    whole = len(cluster.rstrip(JOINERS))
    assert not body.endswith(tuple(JOINERS))
    assert body.rstrip(JOINERS) == (cluster * 200)[: len(body)]
    assert len(body) % len(cluster) in (0, whole), "cut inside a cluster"


def test_direction_and_control_characters_do_not_enter_a_title() -> None:
    assert clean("a\u202eb\u2066c\u200f\x00d\x1b") == "abc d"
