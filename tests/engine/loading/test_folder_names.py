"""What folders call tensors: fused ones are taken apart, old names are known, heads that turn in part are ordered."""
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import CONFIG, Tensors, write_folder

from hamdam.engine.errors import ModelError
from hamdam.engine.loading.checkpoint import open_checkpoint
from hamdam.engine.loading.folder_config import model_config
from hamdam.engine.loading.json_object import JsonObject
from hamdam.engine.loading.weight_names import expected_tensors

MOE = CONFIG | {
    "model_type": "qwen3_moe", "head_dim": 8, "num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
}  # fmt: skip
PARTIAL = CONFIG | {"model_type": "phi3", "head_dim": 16, "partial_rotary_factor": 0.25}


def random_of(config: dict[str, Any]) -> Tensors:
    """Every tensor of a model of this config, under the decoder's names."""
    shapes = expected_tensors(model_config(JsonObject("config.json", config)))
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def assert_opens_as(folder: Path, right: Tensors) -> None:
    found = dict(open_checkpoint(folder).tensors())
    assert found.keys() == right.keys()
    for name, values in right.items():
        assert torch.equal(found[name], values), name


@pytest.mark.parametrize("at", ["language_model.model.", "model.language_model."])
def test_of_a_mistral_that_reads_pictures_the_text_is_read(tmp_path: Path, at: str) -> None:
    text = CONFIG | {"model_type": "mistral", "sliding_window": None}
    right = random_of(text)
    stored = {name.replace("model.", at, 1): values for name, values in right.items()}
    stored |= {"vision_tower.ln_pre.weight": torch.ones(4), "model.multi_modal_projector.norm.weight": torch.ones(4)}
    whole = {"model_type": "mistral3", "text_config": text, "vision_config": {"model_type": "pixtral"}}
    assert_opens_as(write_folder(tmp_path, whole, stored), right)
    assert open_checkpoint(tmp_path).config == model_config(JsonObject("config.json", text))
    with pytest.raises(ModelError, match="architecture 'ministral3' is not supported"):
        model_config(JsonObject("config.json", whole | {"text_config": text | {"model_type": "ministral3"}}))


def test_experts_that_are_fused_in_one_tensor_are_those_that_are_stored_apart(tmp_path: Path) -> None:
    right = random_of(MOE)
    fused: Tensors = {name: values for name, values in right.items() if ".experts." not in name}
    for layer in range(2):
        at = f"model.layers.{layer}.mlp.experts"
        gate, up, down = (
            torch.stack([right[f"{at}.{number}.{part}_proj.weight"] for number in range(3)])
            for part in ("gate", "up", "down")
        )
        fused |= {f"{at}.gate_up_proj": torch.cat((gate, up), 1), f"{at}.down_proj": down}
    assert_opens_as(write_folder(tmp_path / "apart", MOE, right), right)
    assert_opens_as(write_folder(tmp_path / "fused", MOE, fused), right)


def test_mixtrals_own_names_are_known(tmp_path: Path) -> None:
    config = CONFIG | {"model_type": "mixtral", "num_local_experts": 3, "num_experts_per_tok": 2}
    right = random_of(config)
    names = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3", ".mlp.": ".block_sparse_moe."}
    own: Tensors = {}
    for name, values in right.items():
        stored = name
        for ours, theirs in names.items():
            stored = stored.replace(ours, theirs)
        own[stored] = values
    assert_opens_as(write_folder(tmp_path, config, own), right)


def test_a_fused_tensor_of_another_size_is_named(tmp_path: Path) -> None:
    tensors = random_of(CONFIG | {"model_type": "phi3"})
    part = "model.layers.1.self_attn"
    for letter in "qkv":
        del tensors[f"{part}.{letter}_proj.weight"]
    tensors[f"{part}.qkv_proj.weight"] = torch.zeros(63, 32)
    with pytest.raises(ModelError, match=r"missing: .*q_proj.*; unexpected: model\.layers\.1\.self_attn\.qkv_proj"):
        open_checkpoint(write_folder(tmp_path, CONFIG | {"model_type": "phi3"}, tensors))


def test_where_a_part_of_a_head_turns_its_first_half_comes_to_turn_with_its_second(tmp_path: Path) -> None:
    """The rows of a head as numbers: of 16, the first 4 turn, 0 and 1 with 2 and 3."""
    tensors = random_of(PARTIAL)
    name = "model.layers.0.self_attn.k_proj.weight"
    tensors[name] = torch.arange(32.0)[:, None].expand(32, 32).contiguous()
    checkpoint = open_checkpoint(write_folder(tmp_path, PARTIAL, tensors))
    order = [0, 1, 4, 5, 6, 7, 8, 9, 2, 3, 10, 11, 12, 13, 14, 15]
    assert checkpoint.array(name)[:, 0].tolist() == [*order, *(16 + row for row in order)]
    assert checkpoint.array(name, range(7, 18))[:, 5].tolist() == [9, 2, 3, 10, 11, 12, 13, 14, 15, 16, 17]
    value = "model.layers.0.self_attn.v_proj.weight"
    assert np.array_equal(checkpoint.array(value), tensors[value].numpy())


MIXTRAL = CONFIG | {"model_type": "mixtral", "num_local_experts": 3, "num_experts_per_tok": 2}
TWICE = [
    (MIXTRAL, "model.layers.0.block_sparse_moe.gate.weight", (3, 32), "model.layers.0.mlp.gate.weight"),
    (CONFIG | {"model_type": "phi3"}, "model.layers.1.self_attn.qkv_proj.weight", (64, 32), "1.self_attn.q_proj"),
    (CONFIG, "model.language_model.norm.weight", (32,), "model.norm.weight"),
]


@pytest.mark.parametrize(("config", "name", "shape", "words"), TWICE, ids=[name for _, name, *_ in TWICE])
def test_a_tensor_that_is_there_under_two_names_is_refused(
    config: dict[str, Any], name: str, shape: tuple[int, ...], words: str, tmp_path: Path
) -> None:
    """Whichever came last would be taken, and the other be gone unnoticed."""
    folder = write_folder(tmp_path, config, random_of(config) | {name: torch.zeros(shape)})
    with pytest.raises(ModelError, match=rf"gives .*{words}.*which is there already"):
        open_checkpoint(folder)
