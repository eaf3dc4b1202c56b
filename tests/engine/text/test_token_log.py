"""TokenLog: every token of an answer is listed once, with its text and not before; what is cut away is not."""
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hamdam.engine.events import LOWEST, TokenLogprob
from hamdam.engine.policy.batch import Logprobs
from hamdam.engine.text.codec import Codec


@pytest.fixture(scope="module")
def byte_fallback_codec(byte_fallback) -> Codec:
    return Codec(byte_fallback, None)


def listed(codec, ids, stops=(), **more):
    """The text, and with each piece of it the tokens that came with it; the n-th has -n."""
    stream = codec.text_stream(stops=stops, logprobs=True, **more)
    pieces = []
    for number, token in enumerate(ids):
        text, matched = stream.push(token, Logprobs(-float(number), ((token, -float(number)),)))
        pieces.append((text, stream.listed()))
        if matched is not None:
            break
    else:
        pieces.append((stream.finish(), stream.listed()))
    return "".join(text for text, _ in pieces), pieces


def tokens(pieces) -> list[TokenLogprob]:
    return [one for _, own in pieces for one in own]


def bytes_of(pieces) -> bytes:
    return b"".join(one.data for one in tokens(pieces))


TEXTS = st.text(st.sampled_from("abسلام\u200c🦙\n "), max_size=20)


@given(text=TEXTS)
def test_c06_the_bytes_of_all_tokens_are_the_text_and_each_token_is_there_once(chatml, chatml_tokenizer, text):
    ids = chatml_tokenizer.encode(text).ids
    found, pieces = listed(chatml, ids)
    assert found == text
    assert bytes_of(pieces) == text.encode()
    assert [one.logprob for one in tokens(pieces)] == [-float(number) for number in range(len(ids))]


@given(
    text=TEXTS,
    stops=st.sampled_from([("ab",), ("سلام", "🦙\n"), ("ab", "b\n"), ("bab", "abaa"), ("لا", "\u200c", "🦙")]),
    include=st.booleans(),
)
def test_of_a_text_that_a_stop_string_cuts_only_the_tokens_of_what_is_left(
    chatml, chatml_tokenizer, text, stops, include
):
    found, pieces = listed(chatml, chatml_tokenizer.encode(text).ids, stops, include_stop=include)
    assert bytes_of(pieces) == found.encode()
    worths = [one.logprob for one in tokens(pieces)]
    assert worths == [-float(number) for number in range(len(worths))], "in order, from the first on, none twice"
    assert all(one.data for one in tokens(pieces))


@given(text=TEXTS, stops=st.sampled_from([(), ("ab",), ("🦙\n",), ("bab", "abaa")]))
def test_a_token_is_listed_with_the_piece_that_completes_its_text(chatml, chatml_tokenizer, text, stops):
    _, pieces = listed(chatml, chatml_tokenizer.encode(text).ids, stops)
    text = data = b""
    for piece, own in pieces:
        text += piece.encode()
        data += b"".join(one.data for one in own)
        assert text.startswith(data)
        assert len(text) - len(data) < 64, "no longer than a token"


def test_halves_of_a_character_come_with_the_half_that_completes_it(byte_fallback_codec):
    llama = [byte + 3 for byte in "🦙".encode()]
    _, pieces = listed(byte_fallback_codec, llama)
    assert [(text, len(own)) for text, own in pieces] == [("", 0), ("", 0), ("", 0), ("🦙", 4), ("", 0)]
    assert [one.data for one in tokens(pieces)] == [bytes([byte]) for byte in "🦙".encode()]
    assert {one.token for one in tokens(pieces)} == {"\ufffd"}


def test_half_a_character_at_the_end_is_listed_with_its_own_bytes(byte_fallback_codec):
    text, pieces = listed(byte_fallback_codec, [0xF0 + 3, 0x9F + 3])
    assert text == "\ufffd"
    assert bytes_of(pieces) == b"\xf0\x9f"


@pytest.mark.parametrize("stop", ["\ufffd", "\ufffd\ufffda", "a", "b"])
def test_bytes_that_are_no_text_are_listed_or_cut_and_nothing_fails(byte_fallback_codec, stop):
    ids = [byte + 3 for byte in (0x80, 0x80, *b"ab", 0xF0, 0x9F, *b"c")]
    _, pieces = listed(byte_fallback_codec, ids, (stop,))
    assert bytes([0x80, 0x80, *b"ab", 0xF0, 0x9F, *b"c"]).startswith(bytes_of(pieces))


def test_the_space_before_the_first_word_is_of_the_token_and_not_of_the_text(byte_fallback, byte_fallback_codec):
    text, pieces = listed(byte_fallback_codec, map(byte_fallback.token_to_id, ["▁Hello", "▁world"]))
    assert bytes_of(pieces) == text.encode() == b"Hello world"
    first = tokens(pieces)[0]
    assert (first.token, first.data) == (" Hello", b"Hello")
    assert (first.top[0].token, first.top[0].data) == (" Hello", b" Hello")


def test_a_token_that_a_stop_string_cuts_in_two_is_listed_with_what_is_left_of_it(byte_fallback, byte_fallback_codec):
    ids = map(byte_fallback.token_to_id, ["▁Hello", "▁leading", "▁x"])
    text, pieces = listed(byte_fallback_codec, ids, ("ad",))
    assert text == "Hello le"
    assert [(one.token, one.data) for one in tokens(pieces)] == [(" Hello", b"Hello"), (" leading", b" le")]


def test_a_token_without_text_has_its_name_and_no_bytes(chatml, chatml_tokenizer):
    end = chatml_tokenizer.token_to_id("<|im_end|>")
    a = chatml_tokenizer.encode("a").ids
    text, pieces = listed(chatml, [*a, end, *a])
    assert text == "aa"
    assert [(one.token, one.data) for one in tokens(pieces)] == [("a", b"a"), ("<|im_end|>", b""), ("a", b"a")]


def test_c06_what_has_no_probability_has_the_lowest_number_that_is_said(chatml, chatml_tokenizer):
    [a] = chatml_tokenizer.encode("a").ids
    stream = chatml.text_stream(logprobs=True)
    stream.push(a, Logprobs(-float("inf"), ((a, -1e30),)))
    [one] = stream.listed()
    assert (one.logprob, one.top[0].logprob) == (LOWEST, LOWEST)


def test_nobody_who_did_not_ask_is_told(chatml, chatml_tokenizer):
    [a] = chatml_tokenizer.encode("a").ids
    stream = chatml.text_stream()
    stream.push(a)
    assert stream.listed() == ()
