"""A Hugging Face folder as a Checkpoint: the index decides, shards are whole or refused, heads are tied or there."""
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tiny_models import CONFIG, Tensors, random_tensors, write_folder

from hamdam.engine.errors import ModelError
from hamdam.engine.loading.checkpoint import open_checkpoint

FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"
TIED = CONFIG | {"tie_word_embeddings": True}


def write_shards(folder: Path, tensors: Tensors, places: dict[str, str] | None = None) -> Path:
    """Two shards and their index; in `places` what the index says of some tensors, beside the truth."""
    write_folder(folder, CONFIG, {})
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    halves = {FIRST: names[::2], SECOND: names[1::2]}
    for shard, its in halves.items():
        save_file({name: tensors[name] for name in its}, folder / shard)
    index = {name: shard for shard, its in halves.items() for name in its} | (places or {})
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": index}))
    return folder


def assert_equal(found: Tensors, tensors: Tensors) -> None:
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)


def test_f10_shards_give_what_the_whole_file_gives(tmp_path: Path) -> None:
    tensors = random_tensors(CONFIG)
    whole = open_checkpoint(write_folder(tmp_path / "whole", CONFIG, tensors))
    sharded = open_checkpoint(write_shards(tmp_path / "sharded", tensors))
    assert_equal(dict(whole.tensors()), tensors)
    assert_equal(dict(sharded.tensors()), tensors)
    assert_equal({name: torch.from_numpy(values) for name, values in sharded.arrays()}, tensors)
    assert all(whole.quantized(name) is None for name in tensors)
    assert whole.fingerprint == sharded.fingerprint
    assert whole.name == "whole"


def test_f10_1_a_missing_shard_is_named(tmp_path: Path) -> None:
    (write_shards(tmp_path, random_tensors(CONFIG)) / SECOND).unlink()
    with pytest.raises(ModelError, match=f"{SECOND} is missing; was the download incomplete"):
        open_checkpoint(tmp_path)


def test_f10_2_stray_files_beside_the_index_count_for_nothing(tmp_path: Path) -> None:
    tensors = random_tensors(CONFIG)
    write_shards(tmp_path, tensors)
    for stray in ("model.safetensors", "consolidated.safetensors"):
        save_file(random_tensors(CONFIG, seed=1), tmp_path / stray)
    assert_equal(dict(open_checkpoint(tmp_path).tensors()), tensors)


def test_f10_3_a_tensor_comes_from_the_shard_that_the_index_names_and_no_other(tmp_path: Path) -> None:
    tensors = random_tensors(CONFIG)
    write_shards(tmp_path, tensors)
    names = sorted(tensors)
    other = {names[0]: torch.zeros_like(tensors[names[0]]), "stray": torch.ones(3, dtype=torch.int8)}
    save_file({name: tensors[name] for name in names[1::2]} | other, tmp_path / SECOND)
    assert_equal(dict(open_checkpoint(tmp_path).tensors()), tensors)


def test_f10_4_a_shard_cut_short_is_named(tmp_path: Path) -> None:
    shard = write_shards(tmp_path, random_tensors(CONFIG)) / SECOND
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(ModelError, match=rf"{SECOND}: the file ends before its last tensor; was the download"):
        open_checkpoint(tmp_path)


ELSEWHERE = ["../outside.safetensors", "/outside.safetensors", "a/b.safetensors", "..\\x.safetensors", "m.bin", "",
             "a\0.safetensors"]  # fmt: skip


@pytest.mark.parametrize("place", ELSEWHERE)
def test_f10_5_an_index_that_points_elsewhere_is_refused(place: str, tmp_path: Path) -> None:
    save_file(random_tensors(CONFIG), tmp_path / "outside.safetensors")
    folder = write_shards(tmp_path / "model", random_tensors(CONFIG), {"model.norm.weight": place})
    with pytest.raises(ModelError, match=r"is not the name of a \.safetensors file in the folder"):
        open_checkpoint(folder)


def test_f10_an_index_that_names_the_wrong_shard_is_refused(tmp_path: Path) -> None:
    tensors = random_tensors(CONFIG)
    swapped = dict.fromkeys(sorted(tensors)[::2], SECOND)
    with pytest.raises(ModelError, match=f"{SECOND}: .* is missing, though"):
        open_checkpoint(write_shards(tmp_path, tensors, swapped))


def test_f10_pickled_weights_are_never_read(tmp_path: Path) -> None:
    (write_folder(tmp_path) / "model.safetensors").unlink()
    torch.save({"a": torch.ones(1)}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"no \.safetensors files; pickled weights .* are never loaded"):
        open_checkpoint(tmp_path)


def test_f10_several_files_without_an_index_are_refused(tmp_path: Path) -> None:
    write_folder(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "a.safetensors")
    assert len(dict(open_checkpoint(tmp_path).tensors())) == 21
    save_file(random_tensors(CONFIG), tmp_path / "b.safetensors")
    with pytest.raises(ModelError, match=r"2 \.safetensors files, but no"):
        open_checkpoint(tmp_path)


def test_f14_numbers_of_a_type_that_nothing_is_computed_in_are_refused_before_they_are_read(tmp_path: Path) -> None:
    tensors = random_tensors(CONFIG)
    tensors["model.norm.weight"] = tensors["model.norm.weight"].int()
    with pytest.raises(ModelError, match=r"model\.norm\.weight has the type I32, which is not supported"):
        open_checkpoint(write_folder(tmp_path, CONFIG, tensors))


@pytest.mark.parametrize("head", [False, True], ids=["f02_a", "f02_b"])
def test_f02_a_b_a_tied_head_is_the_embedding_whether_or_not_the_file_has_one(head: bool, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_folder(tmp_path, TIED, random_tensors(TIED, head=head)))
    assert checkpoint.config.tie_word_embeddings
    assert_equal(dict(checkpoint.tensors()), random_tensors(TIED, head=False))


UNTIED = {"f02_c": {"tie_word_embeddings": False}, "f02_d": {}, "null": {"tie_word_embeddings": None}}


@pytest.mark.parametrize("said", UNTIED.values(), ids=UNTIED.keys())
def test_f02_c_d_an_untied_head_that_is_missing_is_an_error_with_its_name(said: dict[str, Any], tmp_path: Path) -> None:
    config = {key: value for key, value in CONFIG.items() if key != "tie_word_embeddings"} | said
    write_folder(tmp_path, config, random_tensors(config, head=False))
    with pytest.raises(ModelError, match=r"tensors missing: lm_head\.weight$"):
        open_checkpoint(tmp_path)


def test_f02_missing_and_unexpected_tensors_are_listed(tmp_path: Path) -> None:
    tensors = random_tensors(CONFIG)
    del tensors["model.norm.weight"]
    tensors |= {f"line\nbreak{number}": torch.ones(1) for number in range(7)}
    with pytest.raises(ModelError) as refusal:
        open_checkpoint(write_folder(tmp_path, CONFIG, tensors))
    assert "missing: model.norm.weight; unexpected: line\\nbreak0, " in str(refusal.value)
    assert str(refusal.value).endswith("and 2 more")


def test_old_rotary_tables_in_the_file_are_passed_over(tmp_path: Path) -> None:
    tensors = random_tensors(CONFIG)
    table = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    assert_equal(dict(open_checkpoint(write_folder(tmp_path, CONFIG, tensors | table)).tensors()), tensors)


def test_f14_a_bf16_folder_gives_bf16(tmp_path: Path) -> None:
    tensors = {name: values.bfloat16() for name, values in random_tensors(CONFIG).items()}
    assert_equal(dict(open_checkpoint(write_folder(tmp_path, CONFIG, tensors)).tensors()), tensors)


def test_the_fingerprint_changes_with_one_weight_and_with_the_config(tmp_path: Path) -> None:
    tensors = random_tensors(CONFIG)
    one = open_checkpoint(write_folder(tmp_path / "one", CONFIG, tensors))
    other_config = open_checkpoint(write_folder(tmp_path / "two", CONFIG | {"rope_theta": 5e5}, tensors))
    tensors["model.norm.weight"][5] += 1
    other_weight = open_checkpoint(write_folder(tmp_path / "three", CONFIG, tensors))
    assert len({one.fingerprint, other_config.fingerprint, other_weight.fingerprint}) == 3
