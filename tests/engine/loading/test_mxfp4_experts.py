"""Experts in MXFP4: the numbers of Hugging Face's own conversion, and what does not fit is refused by name."""
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from against_transformers import TINY, random_model, save
from safetensors.torch import load_file, save_file
from transformers import GptOssConfig
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from hamdam.engine.errors import ModelError
from hamdam.engine.loading.checkpoint import open_checkpoint

CONFIG = GptOssConfig(
    **TINY | {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1}, head_dim=8, sliding_window=12,
    num_local_experts=3, num_experts_per_tok=2, pad_token_id=None,
)  # fmt: skip
EXPERTS = "model.layers.0.mlp.experts"
Tensors = dict[str, torch.Tensor]


def write(folder: Path, changes: Tensors | None = None) -> Tensors:
    """A folder as gpt-oss' makers publish it, with random blocks. Returns its tensors."""
    save(random_model(CONFIG), folder)
    tensors, random = load_file(folder / "model.safetensors"), torch.Generator().manual_seed(1)
    for part, outputs, groups in (("gate_up", 192, 2), ("down", 64, 3)):
        del tensors[f"{EXPERTS}.{part}_proj"]
        blocks = torch.randint(0, 256, (3, outputs, groups, 16), generator=random, dtype=torch.uint8)
        scales = torch.randint(118, 126, (3, outputs, groups), generator=random, dtype=torch.uint8)
        tensors |= {f"{EXPERTS}.{part}_proj_blocks": blocks, f"{EXPERTS}.{part}_proj_scales": scales}
    tensors = {name: values for name, values in {**tensors, **(changes or {})}.items() if values.numel()}
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}
    (folder / "config.json").write_text(json.dumps(config))
    return tensors


def test_each_experts_matrices_are_those_of_hugging_faces_own_conversion(tmp_path: Path) -> None:
    tensors = write(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    right = {
        part: convert_moe_packed_tensors(
            tensors[f"{EXPERTS}.{part}_proj_blocks"], tensors[f"{EXPERTS}.{part}_proj_scales"], dtype=torch.float32
        ).numpy()
        for part in ("gate_up", "down")
    }  # [experts, in, out]
    for number in range(3):
        found = {part: checkpoint.array(f"{EXPERTS}.{number}.{part}_proj.weight") for part in ("gate", "up", "down")}
        assert np.array_equal(found["gate"], right["gate_up"][number, :, ::2].T)
        assert np.array_equal(found["up"], right["gate_up"][number, :, 1::2].T)
        assert np.array_equal(found["down"], right["down"][number].T)
        some = checkpoint.array(f"{EXPERTS}.{number}.up_proj.weight", range(7, 30))
        assert np.array_equal(some, found["up"][7:30])
        bias = checkpoint.array(f"{EXPERTS}.{number}.up_proj.bias")
        assert np.array_equal(bias, tensors[f"{EXPERTS}.gate_up_proj_bias"][number, 1::2].numpy())
    assert checkpoint.quantised() == ["MXFP4"]


NOTHING = torch.empty(0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"down_proj_scales": NOTHING}, r"down_proj_scales is missing"),
        ({"down_proj_blocks": NOTHING}, r"down_proj_scales is there without its blocks"),
        ({"down_proj_blocks": torch.zeros(3, 64, 2, 16, dtype=torch.uint8)}, r"not U8 \[3, 64, 3, 16\]"),
        ({"gate_up_proj_scales": torch.zeros(3, 192, 2)}, r"is F32 \[3, 192, 2\] and not U8 \[3, 192, 2\]"),
    ],
)
def test_blocks_and_scales_that_do_not_fit_are_refused_by_name(tmp_path: Path, changes: Tensors, words: str) -> None:
    write(tmp_path, {f"{EXPERTS}.{name}": values for name, values in changes.items()})
    with pytest.raises(ModelError, match=words):
        open_checkpoint(tmp_path)
