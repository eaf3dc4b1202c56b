"""Names of people: what may be one, and the one folded spelling under which sign-up, sign-in and reset look it up.

Two spellings that a reader takes for the same name must not be two accounts, so `name_key` folds compatibility forms
and case, and `clean_name` refuses what folding cannot tell apart: invisible characters, and letters of two scripts in
one name (a Cyrillic "а" among Latin letters).
"""
import unicodedata

from ..errors import ApiError

LONGEST = 64  # characters
FORBIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})  # controls, format and bidi marks, unassigned
ZWNJ = "\u200c"  # the one format character that is spelling: Persian writes it inside words
JOINED = frozenset({"ARABIC"})  # the only script in whose words it may stand
# Japanese and Korean mix these by nature; Han stands in both.
TOGETHER = (frozenset({"CJK", "HIRAGANA", "KATAKANA"}), frozenset({"CJK", "HANGUL"}))


def clean_name(name: str) -> str:
    """The name as it is shown: NFC, single spaces. Raises ApiError(invalid_field) where it cannot be a name."""
    name = " ".join(unicodedata.normalize("NFC", name).split())
    if not name or len(name) > LONGEST:
        raise _refused(f"must have 1 to {LONGEST} characters")
    for place, character in enumerate(name):
        if unicodedata.category(character) in FORBIDDEN and not (character == ZWNJ and _joins(name, place)):
            raise _refused("may not contain invisible or control characters")
    # Modifier letters (ʻokina, the long mark ー) belong to no script of their own.
    letters = [c for c in unicodedata.normalize("NFKC", name) if c.isalpha() and unicodedata.category(c) != "Lm"]
    scripts = {_script(c) for c in letters}
    if len(scripts) > 1 and not any(scripts <= group for group in TOGETHER):
        raise _refused("may not mix letters of different scripts")
    if not name_key(name):
        raise _refused("must contain something to read")
    return name


def name_key(name: str) -> str:
    """The folded spelling, of any text at all: what no name can be is simply nobody's key."""
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
    return " ".join(folded.replace(ZWNJ, "").split())


def _joins(name: str, place: int) -> bool:
    around = name[place - 1 : place] + name[place + 1 : place + 2]
    return len(around) == 2 and all(c.isalpha() and _script(c) in JOINED for c in around)


def _script(character: str) -> str:
    """The script's name as the character's own name begins with it; Python's tables have no script property."""
    first = unicodedata.name(character, "UNKNOWN").split(" ")[0]
    return "LATIN" if first in ("FEMININE", "MASCULINE") else first


def _refused(why: str) -> ApiError:
    return ApiError("invalid_field", f"A name {why}.", param="name")
