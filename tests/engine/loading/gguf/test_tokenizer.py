"""Tokenizers rebuilt from GGUF metadata give the ids of the originals, made here in other ways; or they are refused."""
import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import tiny_models
from default_model import default_model_path
from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, trainers
from tokenizers.models import BPE
from transformers import AutoTokenizer

from hamdam.engine.errors import ModelError
from hamdam.engine.loading.checkpoint import open_checkpoint
from hamdam.engine.loading.gguf import GGUFHeader, read_header
from hamdam.engine.loading.gguf.tokenizer import build_tokenizer

CONTROL = ["<|end|>", "<s>", "<|im_start|>"]
USER_DEFINED = ["<think>", "  \t"]
TEXTS = [
    "<s>G",
    "  two  spaces",
    "don't 12345",
    "DON'T we'll I'VE",
    "Hello world! Café déjà vu — 123 😊",
    "Cafe\u0301 and Ａ１",
    "نمی\u200cخواهم بروم ۱۲۳۴",
    "a\r\n\n  b\t\tc \n",
    "x = [1, 2];\n\n\n    return  y  # ok?!\n",
    "日本語のテキスト 2026年",
    "<think>hm</think><|end|><|im_start|>user\nhi<|end|>",
    "the  \tend<s>  <think> ",
    "",
]
CORPUS = [*TEXTS, "the theory of the thing is that they think, don't they? 1234567890 2026", "CamelCase and snake_case"]
WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
SYMBOLS = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPLITS: dict[str, pre_tokenizers.PreTokenizer | None] = {
    "gpt-2": None,
    "smollm": pre_tokenizers.Digits(individual_digits=True),
    "llama-bpe": pre_tokenizers.Split(Regex(WORDS + r"\p{N}{1,3}" + SYMBOLS), "isolated"),
    "qwen2": pre_tokenizers.Split(Regex(WORDS + r"\p{N}" + SYMBOLS), "isolated"),
    "tekken": pre_tokenizers.Split(Regex(TEKKEN), "isolated"),
}


def original(name: str) -> Tokenizer:
    """A small tokenizer.json of the kind that `name` stands for, trained here."""
    tokenizer = Tokenizer(BPE(ignore_merges=name in ("llama-bpe", "tekken")))
    split, whole = SPLITS[name], name in ("gpt-2", "smollm")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=whole)
    tokenizer.pre_tokenizer = byte_level if split is None else pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    if name == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    letters = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=420, initial_alphabet=letters, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken(text, special=True, normalized=False) for text in CONTROL])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in USER_DEFINED])
    return Tokenizer.from_str(tokenizer.to_str())


def header(metadata: dict[str, Any]) -> GGUFHeader:
    values = {f"tokenizer.ggml.{key}": value for key, value in metadata.items()}
    return GGUFHeader("m.gguf", values, {}, "")


def byte_level(name: str, **changes: Any) -> GGUFHeader:
    """The same tokenizer as the converters write it into a GGUF file."""
    tokenizer = original(name)
    vocabulary = tokenizer.get_vocab()
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    kinds = dict.fromkeys(CONTROL, 3) | dict.fromkeys(USER_DEFINED, 4)
    merges = [" ".join(pair) for pair in json.loads(tokenizer.to_str())["model"]["merges"]]
    plain = {"model": "gpt2", "pre": name, "tokens": tokens, "merges": merges}
    return header(plain | {"token_type": [kinds.get(token, 1) for token in tokens]} | changes)


@pytest.mark.parametrize("name", SPLITS)
def test_f12_a_rebuilt_byte_level_tokenizer_gives_the_originals_ids_and_texts(name: str) -> None:
    theirs, ours = original(name), build_tokenizer(byte_level(name))
    everything = "x".join(CONTROL + USER_DEFINED)
    for text in [*TEXTS, everything]:
        ids = theirs.encode(text).ids
        assert ours.encode(text).ids == ids, text
        assert ours.decode(ids) == theirs.decode(ids)
        assert ours.decode(ids, skip_special_tokens=False) == theirs.decode(ids, skip_special_tokens=False)


@pytest.mark.parametrize(
    ("name", "pieces"),
    [
        ("gpt-2", ["don", "'t", "Ġ12345", "Ġ", "Ġx"]),
        ("smollm", ["don", "'t", "Ġ", "1", "2", "3", "4", "5", "Ġ", "Ġx"]),
        ("starcoder", ["don", "'t", "Ġ", "1", "2", "3", "4", "5", "Ġ", "Ġx"]),
        ("llama-bpe", ["don", "'t", "Ġ", "123", "45", "Ġ", "Ġx"]),
        ("llama3", ["don", "'t", "Ġ", "123", "45", "Ġ", "Ġx"]),
        ("qwen2", ["don", "'t", "Ġ", "1", "2", "3", "4", "5", "Ġ", "Ġx"]),
        ("tekken", ["don", "'t", "Ġ", "1", "2", "3", "4", "5", "Ġ", "Ġx"]),
        ("refact", ["don", "'t", "Ġ", "1", "2", "3", "4", "5", "Ġ", "Ġx"]),
        ("command-r", ["don", "'t", "Ġ", "1", "2", "3", "4", "5", "Ġ", "Ġx"]),
        ("gpt-4o", ["don't", "Ġ", "123", "45", "Ġ", "Ġx"]),
        ("dbrx", ["don", "'t", "Ġ", "123", "45", "Ġ", "Ġx"]),
        ("smaug-bpe", ["don", "'t", "Ġ", "123", "45", "Ġ", "Ġx"]),
        ("qwen35", ["don", "'t", "Ġ", "1", "2", "3", "4", "5", "Ġ", "Ġx"]),
        ("deepseek-coder", ["don", "'", "t", "Ġ", "1", "2", "3", "4", "5", "Ġ", "Ġx"]),
        ("deepseek-v3", ["don", "'t", "Ġ", "123", "45", "Ġ", "Ġx"]),
    ],
)
def test_f12_each_pre_tokenizer_cuts_as_its_name_says(name: str, pieces: list[str]) -> None:
    tokenizer = build_tokenizer(byte_level("gpt-2", pre=name))
    assert tokenizer.pre_tokenizer is not None
    assert [piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str("don't 12345  x")] == pieces


@pytest.mark.parametrize(
    ("name", "composed"), [("command-r", True), ("qwen2", True), ("qwen35", True), ("dbrx", False)]
)
def test_f12_letter_and_accent_become_one_where_the_original_does_so(name: str, composed: bool) -> None:
    tokenizer = build_tokenizer(byte_level("gpt-2", pre=name))
    assert (tokenizer.encode("Cafe\u0301").ids == tokenizer.encode("Café").ids) == composed


@pytest.mark.parametrize(
    ("name", "text", "pieces"),
    [
        ("gpt-4o", "CamelCase's a/\n", ["Camel", "Case's", "Ġa", "/Ċ"]),
        ("tekken", "CamelCase's a/\n", ["Camel", "Case", "'s", "Ġa", "/Ċ"]),
        ("dbrx", "CamelCase's", ["CamelCase", "'s"]),
        ("deepseek-v3", ".com+1234 $x\n\n", [".com", "+", "123", "4", "Ġ$", "x", "ĊĊ"]),
        ("deepseek-coder", "x, y = 12\n\n", ["x", ",", "Ġy", "Ġ=Ġ", "1", "2", "Ċ", "Ċ"]),
    ],
)
def test_f12_pre_tokenizers_differ_where_the_originals_do(name: str, text: str, pieces: list[str]) -> None:
    tokenizer = build_tokenizer(byte_level("gpt-2", pre=name))
    assert tokenizer.pre_tokenizer is not None
    assert [piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)] == pieces


@pytest.mark.parametrize("name", ["klingon", "", "default", "GPT-2"])
def test_f12_an_unknown_pre_tokenizer_is_refused_by_its_name(name: str) -> None:
    with pytest.raises(ModelError, match=f"m.gguf: the pre-tokenizer '{name}' is not supported"):
        build_tokenizer(byte_level("gpt-2", pre=name))


def test_f12_a_file_that_names_no_pre_tokenizer_is_refused() -> None:
    with pytest.raises(ModelError, match="pre-tokenizer ''"):
        build_tokenizer(byte_level("gpt-2", pre=None))


def test_f12_added_tokens_keep_their_special_flag() -> None:
    added = build_tokenizer(byte_level("gpt-2")).get_added_tokens_decoder().values()
    assert {token.content for token in added if token.special} == set(CONTROL)
    assert {token.content for token in added if not token.special} == set(USER_DEFINED)


@pytest.mark.parametrize(
    ("name", "whole", "bos_first"),
    [("llama-bpe", True, True), ("tekken", True, True), ("smaug-bpe", True, False), ("dbrx", False, False),
     ("gpt-4o", False, False), ("qwen2", False, False)],
)  # fmt: skip
def test_f12_a_word_that_is_a_token_is_one_where_the_original_looks_for_it_first(
    name: str, whole: bool, bos_first: bool
) -> None:
    """Some hundred of Llama 3's words are reached by no merges, " ایران" for one. SmolLM 3 has them, and no BOS."""
    tokens = [*tiny_models.TOKENS, "hey"]
    types = [1] * len(tokens)
    said = {"model": "gpt2", "pre": name, "tokens": tokens, "token_type": types, "merges": ["h e"], "bos_token_id": 0}
    ids = build_tokenizer(header(said)).encode("hey").ids
    assert (ids[0] == 0) == bos_first
    assert [tokens[id] for id in ids[bos_first:]] == (["hey"] if whole else ["he", "y"])
    of_gpt_oss = replace(header(said), values={**header(said).values, "general.architecture": "gpt-oss"})
    assert build_tokenizer(of_gpt_oss).encode("hey").ids[bos_first:] == [tokens.index("hey")]


def test_bos_comes_from_the_post_processor_where_the_file_asks_for_it() -> None:
    tokens = byte_level("gpt-2").need_list("tokenizer.ggml.tokens", str)
    bos = tokens.index("<s>")
    unasked = build_tokenizer(byte_level("gpt-2", bos_token_id=bos))
    asked = build_tokenizer(byte_level("gpt-2", bos_token_id=bos, add_bos_token=True))
    plain = unasked.encode("hi").ids
    assert bos not in plain
    assert asked.encode("hi").ids == [bos, *plain]
    assert asked.encode("hi", add_special_tokens=False).ids == plain


LETTERS = "▁abcdefghinorstuw<>/.!'123ا" + "س"
PIECES = ["▁t", "he", "▁the", "in", "▁a", "re", "on", "▁s", "ing", "▁w", "▁thing", "at", "▁is", "er", "▁▁", "th", "is",
          "▁th", "ab", "abc", "bcd", "▁o", "▁on", "s>", "<s", "▁▁▁▁", "st", "▁st"]  # fmt: skip


def sentence_piece(**changes: Any) -> GGUFHeader:
    normal = PIECES + list(LETTERS)
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *normal, "<think>"]
    types = [2, 3, 3, *[6] * 256, *[1] * len(normal), 4]
    scores = [0.0] * 259 + [-1e9 if set(piece) == {"▁"} else -float(at) for at, piece in enumerate(normal)] + [0.0]
    return header({"model": "llama", "tokens": tokens, "token_type": types, "scores": scores} | changes)


def by_the_book(text: str, source: GGUFHeader) -> list[int]:
    """SentencePiece's rule, word for word: join the neighbours whose join has the best score, until none has any."""
    tokens, scores = source.need_list("tokenizer.ggml.tokens", str), source.need_list("tokenizer.ggml.scores", float)
    kinds = source.need_list("tokenizer.ggml.token_type", int)
    score_of = {token: score for token, score, kind in zip(tokens, scores, kinds, strict=True) if kind == 1}
    symbols = list("▁" + text.replace(" ", "▁"))
    while True:
        joined = [left + right for left, right in pairwise(symbols)]
        joins = [(score_of[piece], -at) for at, piece in enumerate(joined) if piece in score_of]
        if not joins:
            break
        at = -max(joins)[1]
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
    ids = []
    for symbol in symbols:
        parts = [symbol] if symbol in score_of else [f"<0x{byte:02X}>" for byte in symbol.encode()]
        ids += [tokens.index(part) for part in parts]
    return ids


@pytest.mark.parametrize("text", [
    "the thing is on", "  two  spaces", "a     b", "abcd bcd abc", "stone street", "Café 123 😊", "سلام\u200cها",
    "<s", "s>", "\n\tthe", "G",
])  # fmt: skip
def test_f12_a_rebuilt_sentence_piece_tokenizer_gives_the_ids_of_the_algorithm(text: str) -> None:
    source = sentence_piece()
    tokenizer = build_tokenizer(source)
    ids = tokenizer.encode(text).ids
    assert ids == by_the_book(text, source)
    assert tokenizer.decode(ids) == text


def test_f12_after_a_special_token_the_space_prefix_comes_again() -> None:
    source = sentence_piece(bos_token_id=1)
    tokenizer = build_tokenizer(source)
    assert tokenizer.encode("<s>G", add_special_tokens=False).ids == [1, *by_the_book("G", source)]
    think = tokenizer.token_to_id("<think>")
    ids = [1, *by_the_book("the", source), think, *by_the_book("on", source)]
    assert tokenizer.encode("the<think>on").ids == ids


def test_f12_tokens_of_phi_3_swallow_the_white_space_behind_them() -> None:
    """Its template has line breaks there, which no prompt of its training had."""
    source = sentence_piece(bos_token_id=1)
    [think] = build_tokenizer(source).encode("<think>", add_special_tokens=False).ids
    on = by_the_book("on", source)
    of_phi = replace(source, values={**source.values, "general.architecture": "phi3"})
    ids = build_tokenizer(of_phi).encode("<think>\n\non</s> \n<think>", add_special_tokens=False).ids
    assert ids == [think, *on, 2, think]
    left = build_tokenizer(of_phi).encode("<s> on", add_special_tokens=False).ids
    assert left == build_tokenizer(source).encode("<s> on", add_special_tokens=False).ids


def test_f12_without_a_space_prefix_nothing_is_put_before() -> None:
    tokenizer = build_tokenizer(sentence_piece(add_space_prefix=False))
    assert [tokenizer.id_to_token(number) for number in tokenizer.encode("the thing").ids] == ["t", "he", "▁thing"]
    assert tokenizer.decode(tokenizer.encode(" the").ids) == " the"


def test_a_run_of_spaces_that_is_there_twice_is_refused() -> None:
    source = sentence_piece(add_space_prefix=False)
    tokens = [*source.need_list("tokenizer.ggml.tokens", str), "  "]
    values = {"tokens": tokens, "scores": [0.0] * 260 + [-float(at) for at in range(len(tokens) - 260)]}
    types = [*source.need_list("tokenizer.ggml.token_type", int), 4]
    with pytest.raises(ModelError, match="the same run of spaces"):
        build_tokenizer(sentence_piece(add_space_prefix=False, token_type=types, **values))


def test_no_text_makes_a_control_or_a_byte_token() -> None:
    """ "<s" and "s>" are pieces here, so the merges of a careless conversion would make "<s>" out of them."""
    tokenizer = build_tokenizer(sentence_piece())
    tokenizer.encode_special_tokens = True
    assert 1 not in tokenizer.encode("<s> </s>").ids
    assert not {3 + byte for byte in range(256)} & set(tokenizer.encode("the").ids)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "t5"}, "the model 't5'"),
        ({"model": None}, r"tokenizer\.ggml\.model is missing"),
        ({"tokens": None}, r"tokenizer\.ggml\.tokens is missing"),
        ({"token_type": [1]}, "1 token types"),
        ({"token_type": None}, r"tokenizer\.ggml\.token_type is missing"),
        ({"scores": None}, r"tokenizer\.ggml\.scores is missing"),
        ({"scores": [0.0]}, "1 scores"),
        ({"scores": [-1000.0] * 316}, "do not order its merges"),
        ({"scores": [float("nan")] * 316}, "do not order its merges"),
        ({"remove_extra_whitespaces": True}, "rewrites its text"),
        ({"precompiled_charsmap": [1, 2]}, "rewrites its text"),
        ({"tokens": ["a"] * 316}, "are the same"),
        ({"tokens": [""] + [str(number) for number in range(315)]}, "is empty"),
        ({"tokens": ["a" * 5000] + [str(number) for number in range(315)]}, "more than 4096 letters"),
    ],
)
def test_a_vocabulary_that_we_only_half_understand_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        build_tokenizer(sentence_piece(**changes))


@pytest.mark.parametrize("merge", ["t zz", "zz", "a b c", "", "t  h", "qqq www"])
def test_a_merge_that_does_not_fit_the_vocabulary_is_refused(merge: str) -> None:
    with pytest.raises(ModelError, match="does not fit the vocabulary"):
        build_tokenizer(byte_level("gpt-2", merges=[merge]))


def test_a_merge_that_would_make_a_control_token_is_refused() -> None:
    metadata = {"tokens": ["<", "s>", "<s>"], "token_type": [1, 1, 3], "merges": ["< s>"]}
    with pytest.raises(ModelError, match="control token"):
        build_tokenizer(header({"model": "gpt2", "pre": "gpt-2"} | metadata))


def test_a_tokenizer_larger_than_the_embedding_is_refused(tmp_path: Path) -> None:
    config = tiny_models.CONFIG | {"vocab_size": 100}
    with pytest.raises(ModelError, match="the tokenizer has the id 259, the embedding only 100 rows"):
        open_checkpoint(tiny_models.write_gguf(tmp_path / "m.gguf", config))


@pytest.mark.model
@pytest.mark.filterwarnings("ignore")  # transformers' own
def test_f12_the_default_models_ids_are_those_of_transformers_conversion() -> None:
    path = default_model_path()
    ours = build_tokenizer(read_header(path))
    theirs = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    added = "".join(token.content for token in ours.get_added_tokens_decoder().values())
    assert len(ours.get_added_tokens_decoder()) == 17
    for text in [*TEXTS, added, f" a {added} b "]:
        ids = theirs(text, add_special_tokens=False)["input_ids"]
        assert ours.encode(text, add_special_tokens=False).ids == ids, text
        assert ours.decode(ids, skip_special_tokens=False) == text or "Cafe" in text


@pytest.mark.model
def test_the_default_model_opens_with_all_its_facts() -> None:
    checkpoint = open_checkpoint(default_model_path())
    assert checkpoint.name == "SmolLM2-135M-Instruct.Q4_1"
    assert (checkpoint.bos_id, checkpoint.bos_text, checkpoint.eos_text) == (None, "<|im_start|>", "<|im_end|>")
    assert checkpoint.eos_ids == {0, 2}  # <|endoftext|> and <|im_end|>
    assert checkpoint.config.max_context == 8192
    assert checkpoint.chat_template is not None
    name, embedding = next(checkpoint.tensors())
    assert (name, embedding.shape) == ("model.embed_tokens.weight", (49152, 576))
