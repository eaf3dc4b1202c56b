"""SentencePiece's kind, written as tokenizer.json and as GGUF: the two give the same ids and the same texts."""
import json
from pathlib import Path

import gguf
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, normalizers, trainers
from tokenizers.models import BPE

from hamdam.engine.loading.gguf import read_header
from hamdam.engine.loading.gguf.tokenizer import build_tokenizer

CORPUS = [
    "the weather is fine today, and they don't think of 12345 other things",
    "کتاب\u200cها را می\u200cخوانم و می\u200cنویسم؛ هوا خوب است و باران نمی\u200cبارد",
    "Café déjà vu: the theatre is there, the others are here",
]
CONTROL, WRITTEN = ("<unk>", "<s>", "</s>"), ("<|turn|>", "<table>", "\n\n")
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
SPACES = ["▁▁", "▁▁▁", "▁▁▁▁"]
TEXTS = [
    "<s>G", "  two  spaces", "don't 12345", "Hello world! Café déjà vu — 123 😊", "می\u200cخواهم ها\u200cی کتاب",
    "a" + "b".join((*CONTROL, *WRITTEN)) + "c", "\n\n\n", "", " ", "▁",
]  # fmt: skip


def pair(folder: Path, *, prefix: bool) -> tuple[Tokenizer, Tokenizer]:
    """(of the tokenizer.json, of the GGUF). Without a prefix they are as Gemma's: runs of spaces are user-defined."""
    learner = Tokenizer(BPE())
    marked = normalizers.Replace(" ", "▁")
    learner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), marked]) if prefix else marked
    trainer = trainers.BpeTrainer(vocab_size=260, show_progress=False)
    learner.train_from_iterator(CORPUS, trainer)
    learnt = [pair for pair in json.loads(learner.to_str())["model"]["merges"] if "▁▁" not in "".join(pair)]
    made = list(dict.fromkeys("".join(pair) for pair in learnt))
    letters = sorted({"▁", *(token for token in learner.get_vocab() if len(token) == 1)})
    runs = [] if prefix else SPACES
    tokens = [*CONTROL, *BYTES, *runs, *made, *letters, *WRITTEN]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    spaces = [(run[:at], run[at:]) for run in runs for at in range(1, len(run))]
    words = []
    for piece in made:
        ways = [(piece[:at], piece[at:]) for at in range(1, len(piece))]
        ways = [way for way in ways if vocabulary.keys() >= set(way)]
        words += sorted(ways, key=lambda way: (vocabulary[way[0]], vocabulary[way[1]]))
    theirs = Tokenizer(BPE(vocabulary, spaces + words, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    theirs.normalizer = learner.normalizer
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    theirs.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    theirs.add_tokens([AddedToken(token, special=True, normalized=False) for token in CONTROL])
    theirs.add_tokens([AddedToken(token, special=False, normalized=False) for token in WRITTEN])
    theirs.save(str(folder / "tokenizer.json"))

    kinds = dict.fromkeys(tokens, 1) | dict.fromkeys(BYTES, 6) | dict.fromkeys((*runs, *WRITTEN), 4)
    kinds |= {"<unk>": 2, "<s>": 3, "</s>": 3}
    scores = {token: -float(at) for at, token in enumerate([*made, *letters])}
    writer = gguf.GGUFWriter(folder / "m.gguf", "llama")
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([token.replace("▁", " ") if token in runs else token for token in tokens])  # as converters do
    writer.add_token_types([kinds[token] for token in tokens])
    writer.add_token_scores([scores.get(token, 0.0) for token in tokens])
    writer.add_add_space_prefix(prefix)
    writer.add_add_bos_token(False)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return Tokenizer.from_file(str(folder / "tokenizer.json")), build_tokenizer(read_header(folder / "m.gguf"))


@pytest.fixture(scope="module", params=[True, False], ids=["llama", "gemma"])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, Tokenizer]:
    return pair(tmp_path_factory.mktemp("pair"), prefix=request.param)


def same(theirs: Tokenizer, ours: Tokenizer, text: str) -> None:
    ids = theirs.encode(text).ids
    assert ours.encode(text).ids == ids, text
    for skip in (True, False):
        assert ours.decode(ids, skip_special_tokens=skip) == theirs.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("text", TEXTS)
def test_f12_a_sentence_piece_vocabulary_gives_one_result_in_both_formats(
    both: tuple[Tokenizer, Tokenizer], text: str
) -> None:
    same(*both, text)


WORDS = st.sampled_from([*" ".join(CORPUS).split(), *CONTROL, *WRITTEN, " ", "\u200c", "😊", "é", "\n", "▁x"])


@settings(max_examples=150, deadline=None)
@given(text=st.lists(WORDS | st.text(st.characters(exclude_categories=["Cs"]), max_size=3), max_size=8).map("".join))
def test_f12_random_text_gives_one_result_in_both_formats(both: tuple[Tokenizer, Tokenizer], text: str) -> None:
    same(*both, text)


@pytest.mark.parametrize("both", [False], ids=["gemma"], indirect=True)
@pytest.mark.parametrize("text", ["▁▁", "a▁▁▁b  c", " " * 4, " " * 3 + "the", "x" + " " * 4 + "the"])
def test_f12_runs_of_spaces_are_pieces_whoever_writes_them(both: tuple[Tokenizer, Tokenizer], text: str) -> None:
    same(*both, text)
    assert any(set(piece) == {"▁"} and len(piece) > 1 for piece in both[1].encode(text).tokens)
