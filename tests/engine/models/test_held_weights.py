"""Matrices that stay quantised in memory: the logits of their dequantised twins, in the bytes that `check` says."""
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kept_bytes import kept_bytes, said_bytes
from quantised_folders import awq, compressed, fp8, gptq, int8, packed
from tiny_models import CONFIG, Tensors, write_folder
from whole_windows import WholeWindows

from hamdam.engine.loading.checkpoint import Checkpoint, open_checkpoint
from hamdam.engine.loading.folder_config import model_config
from hamdam.engine.loading.json_object import JsonObject
from hamdam.engine.loading.weight_names import expected_tensors
from hamdam.engine.models.mlp import ExpertMlp
from hamdam.kernels.grouped import Grouped, Stacked
from hamdam.kernels.quantized import W4A16
from hamdam.kernels.unpacked import Mxfp4

IDS = list(range(3, 40))
SIZES = CONFIG | {"hidden_size": 64, "intermediate_size": 96}
QWEN = SIZES | {
    "model_type": "qwen3_moe", "head_dim": 16, "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 96,
    "norm_topk_prob": True,
}  # fmt: skip
MIXTRAL = SIZES | {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
OSS = SIZES | {
    "model_type": "gpt_oss", "head_dim": 16, "num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 12,
    "layer_types": ["sliding_attention", "full_attention"], "attention_bias": True,
    "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
}  # fmt: skip
FORMATS: dict[str, tuple[dict[str, Any], dict[str, Any], Any]] = {
    "awq": (QWEN, {"quant_method": "awq", "bits": 4, "group_size": 32}, partial(awq, group=32)),
    "gptq, 3 bits, act-order": (
        MIXTRAL, {"quant_method": "gptq", "bits": 3, "group_size": 32, "desc_act": True},
        partial(gptq, group=32, bits=3, scattered=True)),
    "packed": (QWEN, compressed("pack-quantized", num_bits=4), partial(packed, group=None)),
    "int8": (MIXTRAL, compressed("int-quantized"), int8),
    "fp8 by block": (QWEN, {"quant_method": "fp8", "weight_block_size": [64, 64]},
                     partial(fp8, by="block", block=(64, 64), name="weight_scale_inv")),
}  # fmt: skip


DENSE: dict[str, dict[str, Any]] = {  # those that PyTorch computes on the CPU
    "smollm3": SIZES | {"model_type": "smollm3", "no_rope_layers": [1, 0]},
    "gemma2": SIZES | {"model_type": "gemma2", "head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 12,
                       "attn_logit_softcapping": 4.0, "final_logit_softcapping": 3.0},
    "gemma3": SIZES | {"model_type": "gemma3_text", "head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 12,
                       "sliding_window_pattern": 2},
    "qwen3_moe": QWEN,
}  # fmt: skip
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32}
DENSE_FORMATS: dict[str, tuple[dict[str, Any], Any]] = {
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 32}, partial(awq, group=32)),
    "awq, groups of 48, not all whole": ({"quant_method": "awq", "bits": 4, "group_size": 48}, partial(awq, group=48)),
    "gptq": (GPTQ, partial(gptq, group=32)),
    "gptq, act-order": (GPTQ | {"desc_act": True}, partial(gptq, group=32, scattered=True)),
    "gptq, 3 bits": (GPTQ | {"bits": 3}, partial(gptq, group=32, bits=3)),
    "gptq, 8 bits": (GPTQ | {"bits": 8}, partial(gptq, group=32, bits=8)),
    "packed": (compressed("pack-quantized", num_bits=4), partial(packed, group=None)),
    "packed, zeros": (compressed("pack-quantized", num_bits=4, strategy="group", group_size=32, symmetric=False),
                      partial(packed, group=32, symmetric=False)),
    "int8": (compressed("int-quantized"), int8),
    "int8, zeros": (compressed("int-quantized", symmetric=False), partial(int8, symmetric=False)),
    "fp8": (compressed("float-quantized", type="float"), fp8),
    "fp8 by block": ({"quant_method": "fp8", "weight_block_size": [40, 48]},
                     partial(fp8, by="block", block=(40, 48), name="weight_scale_inv")),
}  # fmt: skip


def shapes_of(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    return expected_tensors(model_config(JsonObject("config.json", config)))


def numbers(config: dict[str, Any]) -> Tensors:
    torch.manual_seed(0)
    return {name: torch.randn(shape) * (1 if "norm" in name else 0.1) for name, shape in shapes_of(config).items()}


def stored_and_twin(folder: Path, config: dict[str, Any], said: dict[str, Any], make: Any) -> tuple[Path, Path]:
    random, tensors = np.random.default_rng(3), numbers(config)
    stored: Tensors = {}
    for name, values in tensors.items():
        if not name.endswith("_proj.weight"):
            stored[name] = values
            continue
        made, right = make(random, *values.shape)
        stored |= {f"{name.removesuffix('.weight')}.{part}": tensor for part, tensor in made.items()}
        tensors[name] = torch.from_numpy(np.ascontiguousarray(right, np.float32))
    twin = write_folder(folder / "twin", config, tensors)
    return write_folder(folder / "stored", config | {"quantization_config": said}, stored), twin


def write_mxfp4(folder: Path) -> Path:
    """As gpt-oss' makers have it: gate and up of all experts in turns, a byte of two neighbours."""
    tensors = {name: values for name, values in numbers(OSS).items() if ".experts." not in name}
    tensors = {name.replace(".mlp.gate.", ".mlp.router."): values for name, values in tensors.items()}
    for layer in range(2):
        for part, outputs, inputs in (("gate_up", 192, 64), ("down", 64, 96)):
            name = f"model.layers.{layer}.mlp.experts.{part}_proj"
            tensors[f"{name}_blocks"] = torch.randint(0, 256, (5, outputs, inputs // 32, 16), dtype=torch.uint8)
            tensors[f"{name}_scales"] = torch.randint(118, 124, (5, outputs, inputs // 32), dtype=torch.uint8)
            tensors[f"{name}_bias"] = torch.randn(5, outputs) * 0.1
    return write_folder(folder, OSS | {"quantization_config": {"quant_method": "mxfp4"}}, tensors)


def plain_twin(folder: Path, checkpoint: Checkpoint) -> Path:
    """gpt-oss' folders have plain experts in another order, and fused."""
    tensors: Tensors = {}
    for name in checkpoint.weights.shapes:
        if ".experts." not in name:
            tensors[name.replace(".mlp.gate.", ".mlp.router.")] = torch.from_numpy(checkpoint.array(name))
    for layer in range(2):
        at = f"model.layers.{layer}.mlp.experts"

        def all_of(part: str, at: str = at) -> torch.Tensor:
            return torch.stack([torch.from_numpy(checkpoint.array(f"{at}.{number}.{part}")) for number in range(5)])

        for kind, suffix in (("weight", ""), ("bias", "_bias")):
            gate, up, down = (all_of(f"{part}_proj.{kind}") for part in ("gate", "up", "down"))
            both = torch.stack((gate, up), 2).flatten(1, 2)
            if kind == "weight":
                both, down = both.transpose(1, 2), down.transpose(1, 2)
            tensors |= {f"{at}.gate_up_proj{suffix}": both.contiguous(), f"{at}.down_proj{suffix}": down.contiguous()}
    return write_folder(folder, OSS, tensors)


@pytest.mark.parametrize("form", FORMATS)
def test_experts_of_a_quantised_folder_stay_as_they_are_stored(tmp_path: Path, form: str) -> None:
    path, twin = stored_and_twin(tmp_path, *FORMATS[form])
    held, floats = (WholeWindows(open_checkpoint(one), longest=len(IDS)) for one in (path, twin))
    mlp = held._model.layers[0].mlp
    assert isinstance(mlp, ExpertMlp) and all(isinstance(one, Grouped | Stacked) for one in (*mlp.gate_up, *mlp.down))
    right = floats.logits(IDS)
    assert right.std() > 0.05
    np.testing.assert_allclose(held.logits(IDS), right, rtol=0, atol=1e-4 * np.abs(right).max())
    assert said_bytes(path, "float32") == ("float32, experts as stored", kept_bytes(held._model))
    assert said_bytes(twin, "float32") == ("float32", kept_bytes(floats._model))


@pytest.mark.parametrize("form", DENSE_FORMATS)
@pytest.mark.parametrize("family", DENSE)
def test_all_matrices_of_a_quantised_folder_stay_as_they_are_stored(tmp_path: Path, family: str, form: str) -> None:
    said, make = DENSE_FORMATS[form]
    path, twin = stored_and_twin(tmp_path, DENSE[family], said, make)
    checkpoint = open_checkpoint(path)
    held, floats = (
        WholeWindows(one, longest=len(IDS), hold="all") for one in (checkpoint, open_checkpoint(twin))
    )
    for number, layer in enumerate(held._model.layers):
        assert isinstance(layer.qkv, Stacked) and isinstance(layer.output, Grouped)
        parts = [checkpoint.array(f"model.layers.{number}.self_attn.{name}_proj.weight") for name in "qkv"]
        assert np.array_equal(layer.qkv.dequantise().numpy(), np.concatenate(parts))
    right = floats.logits(IDS)
    assert right.std() > 0.05
    np.testing.assert_allclose(held.logits(IDS), right, rtol=0, atol=1e-4 * np.abs(right).max())
    assert said_bytes(path, "auto") == ("float32, matrices as stored", kept_bytes(held._model))
    assert said_bytes(twin, "auto") == ("float32", kept_bytes(floats._model))
    asked = WholeWindows(checkpoint, longest=len(IDS))  # for floats, by name
    assert said_bytes(path, "float32")[1] == kept_bytes(asked._model)


def test_gpt_oss_experts_stay_mxfp4(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_mxfp4(tmp_path / "stored"))
    twin = open_checkpoint(plain_twin(tmp_path / "twin", checkpoint))
    held, floats = (WholeWindows(one, longest=len(IDS)) for one in (checkpoint, twin))
    mlp = held._model.layers[0].mlp
    assert isinstance(mlp, ExpertMlp) and all(isinstance(one, Mxfp4) for one in (*mlp.gate_up, *mlp.down))
    assert sum(one.nbytes for one in (*mlp.gate_up, *mlp.down)) == 5 * (192 * 64 + 64 * 96) // 32 * 17
    right = floats.logits(IDS)
    assert right.std() > 0.05
    np.testing.assert_allclose(held.logits(IDS), right, rtol=0, atol=1e-4 * np.abs(right).max())
    assert said_bytes(tmp_path / "stored", "float32") == ("float32, experts as stored", kept_bytes(held._model))


def test_a_device_gets_experts_in_the_forms_that_its_kernels_multiply(tmp_path: Path) -> None:
    """Nothing else of them that only the CPU can read, but MXFP4, which any can."""
    path, _ = stored_and_twin(tmp_path, *FORMATS["awq"])
    for name, piece in open_checkpoint(path).pieces(keep=True):
        assert isinstance(piece.values, W4A16) == name.endswith("_proj.weight")
    kinds = {type(piece.values) for _, piece in open_checkpoint(write_mxfp4(tmp_path / "oss")).pieces(keep=False)}
    assert kinds == {torch.Tensor, Mxfp4}
