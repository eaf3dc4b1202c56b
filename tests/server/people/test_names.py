"""Names: one account for all spellings that a reader takes for the same, and none for what cannot be read."""
import pytest

from hamdam.server.errors import ApiError
from hamdam.server.people.names import LONGEST, clean_name, name_key


@pytest.mark.parametrize(
    "spelling",
    ["Ana", "ANA", "  ana ", "ａｎａ", "Ana\u00a0", "𝐀𝐧𝐚", "Ⓐna"],
)
def test_spellings_of_one_name_are_one_account(spelling: str) -> None:
    assert name_key(spelling) == name_key("ana")


@pytest.mark.parametrize(
    ("one", "other"),
    [("Straße", "STRASSE"), ("ﬁn", "FIN"), ("I", "i"), ("é", "e\u0301"), ("می\u200cخواهم", "میخواهم")],
)
def test_case_and_composition_make_no_second_account(one: str, other: str) -> None:
    assert name_key(one) == name_key(other)


@pytest.mark.parametrize(
    "name",
    [
        *("Ana María", "O'Neill-Smith", "Ōtani", "ʻIolani", "Ana.B_3"),
        *("مریم", "می\u200cخواهم", "李小龙", "さくらカ", "김 철수 2"),
    ],
)
def test_names_of_people_are_names(name: str) -> None:
    assert clean_name(name) == name


def test_space_round_and_in_a_name_is_single() -> None:
    assert clean_name("  Ana \t\u00a0 María\n") == "Ana María"


@pytest.mark.parametrize(
    "name",
    [
        *("", "   ", "\u200b", "ana\u200b", "ana\u202etxt", "\u2066ana\u2069", "a\u200cna", "\ufeffana"),
        *("ana\x00", "ana\x1b[2J", "\ud800", "x" * (LONGEST + 1)),
    ],
)
def test_what_cannot_be_seen_is_no_name(name: str) -> None:
    with pytest.raises(ApiError) as refused:
        clean_name(name)
    assert (refused.value.code, refused.value.param) == ("invalid_field", "name")


@pytest.mark.parametrize("name", ["аna", "Αna", "anа", "admіn", "aдmin", "مریمm"])
def test_letters_of_two_scripts_are_no_name(name: str) -> None:
    with pytest.raises(ApiError, match="different scripts"):
        clean_name(name)


def test_a_key_of_anything_is_a_key_and_folding_is_final() -> None:
    for text in ("\x00", "", "İstanbul", "ΑΣ", "ﷺ", "\u0345", "x" * 5000):
        assert name_key(name_key(text)) == name_key(text)
