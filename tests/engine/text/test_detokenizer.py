"""Ids to text: never half a character, never a space too many or too few."""
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from hamdam.engine.errors import ModelError
from hamdam.engine.text.codec import Codec

FAMILIES = "👨‍👩‍👧 می‌روم کتاب‌ها العَرَبِيَّة 漢字かな 🦙ď \u00a0» \ufffd \ufeff"
texts = st.text(st.sampled_from(FAMILIES) | st.characters(exclude_categories=["Cs"]), max_size=40)


@pytest.fixture(scope="session")
def spm(byte_fallback):
    return Codec(byte_fallback, None, bos_text="<s>", eos_text="</s>", bos_id=1, eos_ids=[2])


def pieces(codec: Codec, ids: list[int], prompt: list[int] | tuple[int, ...] = ()) -> list[str]:
    detokenizer = codec.detokenizer(prompt)
    return [*map(detokenizer.push, ids), detokenizer.flush()]


def bytes_of(text: str) -> list[int]:
    return [3 + byte for byte in text.encode()]


def ids(tokenizer: Tokenizer, *names: str) -> list[int]:
    return [tokenizer.token_to_id(name) for name in names]


def test_a01_the_bytes_of_one_character_come_out_as_the_character(spm, byte_fallback):
    hello, mark = ids(byte_fallback, "▁Hello", "!")
    assert pieces(spm, [hello, *bytes_of("🦙"), mark]) == ["Hello", "", "", "", "🦙", "!", ""]
    assert pieces(spm, bytes_of("ď")) == ["", "ď", ""]


def test_a01_the_half_space_between_two_word_tokens_is_one_character(spm, byte_fallback):
    me, go = ids(byte_fallback, "می", "روم")
    assert pieces(spm, [me, *bytes_of("\u200c"), go]) == ["می", "", "", "\u200c", "روم", ""]


@given(text=texts, seed=st.integers(0, 1000))
def test_a01_streaming_is_batch_decoding(spm, byte_fallback, text, seed):
    sampled = bytes_of(text)
    streamed = pieces(spm, sampled)
    assert "".join(streamed) == byte_fallback.decode(sampled) == spm.decode(sampled)
    assert ("\ufffd" in "".join(streamed)) == ("\ufffd" in text)
    cut = random.Random(seed).randint(0, len(sampled))
    before, after = sampled[:cut], sampled[cut:]
    going_on = "".join(pieces(spm, after, before)) if before else "".join(streamed)
    assert going_on == spm.decode(sampled)[len("".join(pieces(spm, before)[:-1])) :], "cut anywhere, it goes on"


@given(text=texts)
def test_a01_streaming_is_batch_decoding_with_byte_level_pieces(chatml, chatml_tokenizer, text):
    sampled = chatml_tokenizer.encode(text, add_special_tokens=False).ids
    assert "".join(pieces(chatml, sampled)) == chatml_tokenizer.decode(sampled) == chatml.decode(sampled) == text


@given(st.lists(st.integers(3, 258), max_size=30))
def test_invalid_bytes_are_replaced_as_batch_decoding_replaces_them(chatml, chatml_tokenizer, sampled):
    """The ids are those of the 256 single bytes, in any order."""
    assert "".join(pieces(chatml, sampled)) == chatml_tokenizer.decode(sampled)


def test_bytes_that_never_become_a_character_are_one_mark_in_the_end(spm, byte_fallback):
    (ok,) = ids(byte_fallback, "ok")
    assert pieces(spm, [ok, *bytes_of("🦙")[:3]]) == ["ok", "", "", "", "\ufffd"]


def test_bytes_proven_invalid_are_marked_at_once_and_nothing_raises(spm, byte_fallback):
    ok, quote = ids(byte_fallback, "ok", "»")
    assert "".join(pieces(spm, [ok, 3 + 0xC2, 3 + 0xA0, 3 + 0xC2, quote])) == "ok\u00a0\ufffd»"


def test_a06_an_answer_loses_exactly_the_one_space_that_stands_before_its_first_word(spm, byte_fallback):
    assert pieces(spm, ids(byte_fallback, "▁Hello", "▁world", ".")) == ["Hello", " world", ".", ""]
    assert "".join(pieces(spm, ids(byte_fallback, "▁", "▁leading", "▁x"))) == " leading x"
    assert "".join(pieces(spm, ids(byte_fallback, "▁▁▁▁", "."))) == "   ."


def test_a06_a_completion_keeps_the_space_before_its_first_word(spm, byte_fallback):
    prompt, (world,) = ids(byte_fallback, "▁Hello"), ids(byte_fallback, "▁world")
    assert pieces(spm, [world], prompt) == [" world", ""]
    assert pieces(spm, [world], ids(byte_fallback, "<s>")) == ["world", ""], "a silent BOS is no text to go on from"


@given(data=st.data())
def test_a06_a_completion_is_what_the_whole_has_more_than_the_prompt(spm, byte_fallback, data):
    ordinary = st.sampled_from(range(259, byte_fallback.get_vocab_size()))
    prompt, sampled = data.draw(st.lists(ordinary, max_size=5)), data.draw(st.lists(ordinary, max_size=10))
    whole = byte_fallback.decode(prompt + sampled)
    assert "".join(pieces(spm, sampled, prompt)) == whole[len(byte_fallback.decode(prompt)) :]


def test_half_a_character_at_the_end_of_what_is_continued_is_completed(spm):
    llama = bytes_of("🦙")
    assert pieces(spm, llama[2:], bytes_of("a") + llama[:2]) == ["", "🦙", ""]


def test_special_ids_the_end_and_ids_beyond_the_vocabulary_have_no_text(spm, chatml):
    assert "".join(pieces(spm, [1, 2, spm.vocab_size, spm.vocab_size + 900, -1])) == ""
    assert "".join(pieces(chatml, [1, 2, chatml.vocab_size])) == ""


def test_an_end_token_that_the_tokenizer_does_not_call_special_has_no_text():
    tokenizer = Tokenizer(models.BPE({"a": 0, "<end>": 1}, []))
    tokenizer.decoder = decoders.ByteLevel()
    assert Codec(tokenizer, None, eos_ids=[1]).decode([0, 1]) == "a"


def test_a_piece_outside_the_alphabet_of_bytes_stands_for_itself():
    pieces = {"Ġhi": 0, "a b": 1, "\n": 2, "گ": 3, "Ċ": 4, "🦙x": 5, "Ń": 6, "ń": 7}
    tokenizer = Tokenizer(models.BPE(pieces, []))
    tokenizer.decoder = decoders.ByteLevel()
    codec = Codec(tokenizer, None)
    assert [codec.decode([token]) for token in range(8)] == [" hi", "a b", "\n", "گ", "\n", "🦙x", "\ufffd", "ń"]
    assert codec.longest_token == len("🦙x".encode())


def test_an_added_token_that_is_not_special_is_text(thinking):
    codec = Codec(thinking, None)
    think = thinking.token_to_id("<think>")
    assert pieces(codec, [think]) == ["<think>", ""]


def test_a_tokenizer_of_whole_words_has_spaces_between_them():
    tokenizer = Tokenizer(models.WordLevel({"hello": 0, "world": 1}, unk_token="hello"))
    assert Codec(tokenizer, None).decode([0, 1]) == tokenizer.decode([0, 1]) == "hello world"


@pytest.mark.parametrize("decoder", [decoders.WordPiece(), decoders.Strip(" ", 1, 0), decoders.CTC()])
def test_a_decoder_that_looks_at_neighbours_is_refused_by_name(decoder):
    tokenizer = Tokenizer(models.BPE({"a": 0}, []))
    tokenizer.decoder = decoder
    with pytest.raises(ModelError, match=r"decoder step .* is not supported"):
        Codec(tokenizer, None)


def test_metaspace_pieces_lose_one_space_at_the_start():
    tokenizer = Tokenizer(models.BPE({"▁a": 0, "▁b": 1}, []))
    tokenizer.decoder = decoders.Metaspace()
    assert Codec(tokenizer, None).decode([0, 1, 1]) == tokenizer.decode([0, 1, 1]) == "a b b"


def test_a08_joiners_stay_where_they_are(chatml, chatml_tokenizer):
    for text in ("می‌روم", "کتاب‌ها", "👨‍👩‍👧"):
        sampled = chatml_tokenizer.encode(text).ids
        assert list(chatml.decode(sampled)) == list(text)
        assert chatml.decode(chatml.encode_text(text)) == text


def test_no_token_is_longer_than_the_longest(chatml, chatml_tokenizer):
    assert chatml.longest_token == max(map(len, chatml_tokenizer.get_vocab())) == len("<|endoftext|>")
