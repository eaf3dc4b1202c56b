"""The text of one answer as its ids come in: detokenizer and stop strings together."""
import pytest
from hypothesis import given
from hypothesis import strategies as st


def streamed(codec, ids, stops=(), **more):
    stream = codec.text_stream(stops=stops, **more)
    out = []
    for token in ids:
        text, matched = stream.push(token)
        out.append(text)
        if matched is not None:
            return "".join(out), matched, len(out)
    return "".join(out) + stream.finish(), stream.matched, len(out)


@given(
    text=st.text(st.sampled_from("abسلام\u200c🦙\n "), max_size=20),
    stop=st.sampled_from(["ab", "سلام", "🦙\n", "\n\n"]),
)
def test_a03_the_stream_ends_where_the_whole_text_would_be_cut(chatml, chatml_tokenizer, text, stop):
    ids = chatml_tokenizer.encode(text).ids
    expected, _, _ = text.partition(stop)
    got, matched, counted = streamed(chatml, ids, (stop,))
    assert got == expected
    assert matched == (stop if stop in text else None)
    assert stop not in chatml.decode(ids[: counted - 1]), "the token that completes it is the last that counts"


@given(
    text=st.text(st.sampled_from("abسلام\u200c🦙\n "), max_size=20),
    stops=st.sampled_from([("ab",), ("سلام", "🦙\n"), ("ab", "b\n"), ("bab", "abaa")]),
)
def test_an_included_stop_string_is_the_last_of_the_text(chatml, chatml_tokenizer, text, stops):
    ids = chatml_tokenizer.encode(text).ids
    without, matched, counted = streamed(chatml, ids, stops)
    assert streamed(chatml, ids, stops, include_stop=True) == (without + (matched or ""), matched, counted)


@pytest.mark.parametrize("count", range(6))
def test_a04_whatever_ends_it_everything_outside_a_stop_string_is_delivered(chatml, chatml_tokenizer, count):
    ids = chatml_tokenizer.encode("ONE TWO THREE 🦙").ids[:count]
    assert streamed(chatml, ids, ("THREE\nXXXX",))[0] == chatml.decode(ids)


def test_a_stop_string_that_only_the_end_settles_is_told_after_finish(chatml, chatml_tokenizer):
    ids = chatml_tokenizer.encode("abc").ids
    assert streamed(chatml, ids, ("bc", "abcd"))[:2] == ("a", "bc")


def test_special_ids_in_an_answer_have_no_text_and_end_no_stop_string(chatml, chatml_tokenizer):
    a, b = chatml_tokenizer.encode("a").ids, chatml_tokenizer.encode("b").ids
    assert streamed(chatml, [*a, 1, *b], ("ab",)) == ("", "ab", 3)
