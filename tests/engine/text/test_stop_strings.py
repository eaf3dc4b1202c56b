"""Stop strings: nothing of one reaches the client, nothing that is none is lost, however the text was split."""
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hamdam.engine.text.stop_strings import StopStrings

alphabet = st.text("ab", max_size=30)
stop_lists = st.lists(st.text("abc", min_size=1, max_size=6), min_size=1, max_size=4).map(tuple)
splits = st.lists(st.integers(1, 4), min_size=1, max_size=40)


def fed(stops: tuple[str, ...], pieces: list[str]) -> tuple[list[str], str | None]:
    """What left after each piece and at the end, and the stop string that matched."""
    watch = StopStrings(stops)
    out = []
    for piece in pieces:
        text, matched = watch.push(piece)
        out.append(text)
        if matched is not None:
            return out, matched
    return [*out, watch.flush()], watch.matched


def split(text: str, sizes: list[int]) -> list[str]:
    pieces, i = [], 0
    while text:
        size = sizes[i % len(sizes)]
        pieces.append(text[:size])
        text, i = text[size:], i + 1
    return pieces


def longest_beginning(text: str, stops: tuple[str, ...]) -> str:
    return max((s[:n] for s in stops for n in range(len(s)) if text.endswith(s[:n])), key=len)


@pytest.mark.parametrize(
    ("stops", "pieces", "out", "matched"),
    [
        (("DEFGHIJ",), ["DEF", "G", "HI", "J"], ["", "", "", ""], "DEFGHIJ"),
        (("\nUser:",), ["Hi\nUser", ":"], ["Hi", ""], "\nUser:"),
        (("aab",), ["a", "a", "a", "b"], ["", "", "a", ""], "aab"),
        (("\n\n###",), ["I ", "am"], ["I ", "am", ""], None),
    ],
)
def test_a03_no_part_of_a_stop_string_leaves(stops, pieces, out, matched):
    assert fed(stops, pieces) == (out, matched)


@given(text=alphabet, stops=stop_lists, sizes=splits)
def test_a03_the_cut_is_at_the_earliest_stop_however_the_text_is_split(text, stops, sizes):
    places = [text.find(stop) for stop in stops if stop in text]
    out, matched = fed(stops, split(text, sizes))
    assert "".join(out) == text[: min(places, default=len(text))]
    assert (matched is not None) == bool(places)
    if matched is not None:
        assert text.startswith(matched, min(places))


@given(text=alphabet, stops=stop_lists, sizes=splits)
def test_a03_what_is_withheld_is_the_longest_tail_that_begins_a_stop_string(text, stops, sizes):
    watch, seen, left = StopStrings(stops), "", ""
    for piece in split(text, sizes):
        released, matched = watch.push(piece)
        if matched is not None:
            return
        seen, left = seen + piece, left + released
        if not any(stop in seen for stop in stops):
            assert left + longest_beginning(seen, stops) == seen


def test_a03_an_earlier_stop_that_may_still_complete_is_waited_for():
    stops = ("bc", "abcd")
    assert fed(stops, ["abc", "d"]) == (["", ""], "abcd")
    assert fed(stops, ["abc", "x"]) == (["", "a"], "bc")
    assert fed(stops, ["abc"]) == (["", "a"], "bc")


def test_a04_the_withheld_tail_is_delivered_at_the_end():
    assert "".join(fed(("THREE\nXXXX",), ["ONE", " TWO", " THREE"])[0]) == "ONE TWO THREE"
    assert fed(("\n",), ["?\n"]) == (["?"], "\n")


@pytest.mark.parametrize("count", range(5))
def test_a04_whenever_the_text_ends_all_of_it_was_delivered(count):
    pieces = ["ONE", " TWO", " THREE", "\nXX"][:count]
    assert "".join(fed(("THREE\nXXXX", "E T!"), pieces)[0]) == "".join(pieces)


def test_after_a_match_nothing_more_leaves():
    watch = StopStrings(("x",))
    assert watch.push("axb") == ("a", "x")
    assert watch.push("more") == ("", "x")
    assert watch.flush() == ""


def test_without_stop_strings_text_passes():
    assert fed((), ["a", "b"]) == (["a", "b", ""], None)


def test_an_empty_stop_string_is_refused():
    with pytest.raises(ValueError, match="empty"):
        StopStrings(("",))


def test_the_work_for_a_character_does_not_grow_with_the_number_and_length_of_stops():
    """The automaton never has more states than the stop strings have characters, and holds back no more than one."""
    stops = tuple("a" * 255 + chr(ord("b") + i) for i in range(16))
    watch = StopStrings(stops)
    left = "".join(watch.push("a")[0] for _ in range(10_000))
    assert len(left) == 10_000 - 255
