"""A model of a new name that is declared to be like a known one is that one; a declaration that errs is refused."""
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import CONFIG, random_tensors, write_folder, write_gguf

from hamdam.engine.errors import ModelError
from hamdam.engine.loading.checkpoint import Checkpoint, open_checkpoint

QWEN = CONFIG | {"model_type": "qwen2"}
DECLARED = {"model_type": "newcomer", "like": "qwen2"}


def folder_of(folder: Path, said: dict[str, Any] | None, **config: Any) -> Path:
    """A qwen2 that calls itself otherwise, and what stands beside it."""
    write_folder(folder, QWEN, random_tensors(QWEN))
    (folder / "config.json").write_text(json.dumps(QWEN | {"model_type": "newcomer"} | config))
    if said is not None:
        (folder / "hamdam.json").write_text(json.dumps(said))
    return folder


def gguf_of(path: Path, said: dict[str, Any] | None) -> Path:
    path.parent.mkdir(exist_ok=True)
    write_gguf(path, QWEN | {"model_type": "newcomer"}, random_tensors(QWEN))
    if said is not None:
        path.with_suffix(".hamdam.json").write_text(json.dumps(said))
    return path


def same(one: Checkpoint, other: Checkpoint) -> bool:
    found = dict(other.tensors())
    return one.config == other.config and all(torch.equal(tensor, found[name]) for name, tensor in one.tensors())


def test_a_folder_is_what_it_is_declared_to_be_like(tmp_path: Path) -> None:
    right = open_checkpoint(write_folder(tmp_path / "right", QWEN, random_tensors(QWEN)))
    assert same(open_checkpoint(folder_of(tmp_path / "new", DECLARED)), right)


def test_a_gguf_is_what_it_is_declared_to_be_like(tmp_path: Path) -> None:
    right = open_checkpoint(write_gguf(tmp_path / "right.gguf", QWEN, random_tensors(QWEN)))
    found = open_checkpoint(gguf_of(tmp_path / "new.gguf", DECLARED))
    assert same(found, right)
    assert found.name == "new"


def test_what_is_set_goes_before_what_the_files_say(tmp_path: Path) -> None:
    said = DECLARED | {"set": {"rope_theta": 5e5, "max_position_embeddings": 64}}
    config = open_checkpoint(folder_of(tmp_path / "folder", said)).config
    assert config.max_context == 64
    right = open_checkpoint(write_folder(tmp_path / "right", QWEN | said["set"], random_tensors(QWEN)))
    assert config == right.config
    said = DECLARED | {"set": {"qwen2.context_length": 64}}
    assert open_checkpoint(gguf_of(tmp_path / "new.gguf", said)).config.max_context == 64


def test_what_is_declared_otherwise_is_another_model_to_every_cache(tmp_path: Path) -> None:
    for open_model, key in ((folder_of, "rope_theta"), (gguf_of, "qwen2.rope.freq_base")):
        said = (DECLARED, DECLARED | {"set": {key: 5e5}}, DECLARED | {"set": {}})
        assert len({open_checkpoint(open_model(tmp_path / f"{key}.gguf", one)).fingerprint for one in said}) == 3


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (None, "'newcomer' is not supported"),
        ({"model_type": "newcomer"}, "hamdam.json: like is missing"),
        ({"like": "qwen2"}, "hamdam.json: model_type is missing"),
        (DECLARED | {"model_type": "other"}, "of the model_type 'other', and the model is a 'newcomer'"),
        (DECLARED | {"like": "nobody"}, "'nobody' is not supported"),
        (DECLARED | {"like": 5}, "like is not a str"),
        (DECLARED | {"set": []}, "set is not an object"),
        (DECLARED | {"also": 1}, "'also' is none of like, model_type, set"),
        (DECLARED | {"like": "llama"}, "unexpected: "),
        (DECLARED | {"like": "qwen3"}, "q_norm.weight"),
    ],
)
def test_a_declaration_that_errs_is_refused_in_one_line(
    tmp_path: Path, said: dict[str, Any] | None, words: str
) -> None:
    with pytest.raises(ModelError, match=words) as refusal:
        open_checkpoint(folder_of(tmp_path / "folder", said))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("said", [None, {"model_type": "newcomer"}, DECLARED | {"model_type": "other"},
                                  DECLARED | {"like": "nobody"}, DECLARED | {"also": 1}])
def test_beside_a_gguf_too(tmp_path: Path, said: dict[str, Any] | None) -> None:
    with pytest.raises(ModelError):
        open_checkpoint(gguf_of(tmp_path / "new.gguf", said))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rope_teta": 5e5}, "hamdam.json: nothing reads 'rope_teta', which is set .what is read: .*, rope_theta, "),
        ({"logit_scale": 2.0}, "nothing reads 'logit_scale'"),
        ({"tie_word_embeddings": False, "max_postion_embeddings": 64}, "nothing reads 'max_postion_embeddings'"),
        ({"model_type": "llama"}, "hamdam.json: set: model_type is what like says"),
    ],
)
def test_what_is_set_and_nothing_reads_is_refused_with_what_is_read(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(ModelError, match=words) as refusal:
        open_checkpoint(folder_of(tmp_path / "folder", DECLARED | {"set": changes}))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"qwen2.context_lenght": 64}, "new.hamdam.json: nothing reads 'qwen2.context_lenght', .*qwen2.context_length"),
        ({"newcomer.context_length": 64}, "nothing reads 'newcomer.context_length'"),
        ({"general.architecture": "llama"}, "set: general.architecture is what like says"),
    ],
)
def test_so_it_is_beside_a_gguf(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        open_checkpoint(gguf_of(tmp_path / "new.gguf", DECLARED | {"set": changes}))


def test_an_end_that_is_set_is_one_and_the_config_s_own_is_none(tmp_path: Path) -> None:
    said = DECLARED | {"set": {"eos_token_id": 9}}
    assert open_checkpoint(folder_of(tmp_path, said, eos_token_id=7)).eos_ids == {9}
    (tmp_path / "hamdam.json").write_text(json.dumps(DECLARED))
    assert open_checkpoint(tmp_path).eos_ids == {7}


def test_all_that_a_config_says_may_be_set_too(tmp_path: Path) -> None:
    said = DECLARED | {"set": {key: value for key, value in QWEN.items() if key != "model_type"}}
    assert open_checkpoint(folder_of(tmp_path / "new", said)).config.vocab_size == QWEN["vocab_size"]


def test_a_model_of_an_unknown_name_is_told_of_it(tmp_path: Path) -> None:
    for open_model in (lambda: folder_of(tmp_path / "folder", None), lambda: gguf_of(tmp_path / "new.gguf", None)):
        with pytest.raises(ModelError, match=r"can be declared in hamdam\.json"):
            open_checkpoint(open_model())


@pytest.mark.parametrize("like", ["phi3", "gemma2", "qwen3_moe"])
def test_what_is_like_any_family_is_read_as_that_one(tmp_path: Path, like: str) -> None:
    """As far as its tensors: those of a qwen2 do not do for any of these."""
    with pytest.raises(ModelError, match=r"tensors|missing"):
        open_checkpoint(folder_of(tmp_path, DECLARED | {"like": like}))


def test_what_is_no_json_is_refused_by_its_name(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, None)
    (folder / "hamdam.json").write_text("{")
    with pytest.raises(ModelError, match=r"hamdam\.json"):
        open_checkpoint(folder)
