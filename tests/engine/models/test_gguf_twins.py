"""Models of random GGUF blocks, of those too that no package writes: they answer as their dequantised twins."""
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from kept_bytes import kept_bytes, said_bytes
from tiny_models import CONFIG, Tensors, random_tensors, write_folder, write_gguf
from whole_windows import WholeWindows

from hamdam.engine.config import EngineConfig
from hamdam.engine.execution.model_runner import ModelRunner
from hamdam.engine.loading.checkpoint import open_checkpoint
from hamdam.kernels.grouped import Grouped
from hamdam.kernels.quantized import W4A16
from hamdam.kernels.reference import Reference

Q = gguf.GGMLQuantizationType
HALVES = {  # where a block has its float16 numbers, and how large they are so that weights are about 0.1
    Q.Q4_0: {0: 0.02}, Q.Q4_1: {0: 0.02, 2: 0.15}, Q.Q5_0: {0: 0.01}, Q.Q5_1: {0: 0.01, 2: 0.15}, Q.Q8_0: {0: 0.001},
    Q.Q2_K: {80: 0.005, 82: 0.005}, Q.Q3_K: {108: 0.002}, Q.Q4_K: {0: 0.0003, 2: 0.001}, Q.Q5_K: {0: 0.0001, 2: 0.001},
    Q.Q6_K: {208: 0.0001}, Q.IQ4_NL: {0: 0.001}, Q.IQ4_XS: {0: 0.0001},
}  # fmt: skip
WIDE = CONFIG | {"model_type": "qwen2", "hidden_size": 256, "num_hidden_layers": 1, "intermediate_size": 256}
IDS = list(range(3, 40))


def random_blocks(kind: Q, rows: int, columns: int) -> np.ndarray:
    random = np.random.default_rng(int(kind) + rows)
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = random.integers(0, 256, (rows, columns // elements, size), dtype=np.uint8)
    for at, largest in HALVES[kind].items():
        halves = random.uniform(-largest, largest, blocks.shape[:2]).astype(np.float16)
        blocks[..., at : at + 2] = halves[..., None].view(np.uint8)
    return blocks.reshape(rows, -1)


@pytest.mark.parametrize("family", ["qwen2", "llama"])
@pytest.mark.parametrize("kind", HALVES, ids=lambda kind: kind.name)
def test_f06_blocks_have_the_logits_of_their_dequantised_twin(tmp_path: Path, kind: Q, family: str) -> None:
    """Of a llama file q and k are rotary pairs: their rows change places, block by block."""
    config = WIDE | {"model_type": family}
    tensors: Tensors = random_tensors(config)
    matrices = [name for name in tensors if name.endswith(("_proj.weight", "embed_tokens.weight", "lm_head.weight"))]
    raw = {name: random_blocks(kind, *tensors[name].shape) for name in matrices}
    twin = {name: torch.from_numpy(gguf.quants.dequantize(blocks, kind)) for name, blocks in raw.items()}
    if family == "llama":
        pairs = {"q_proj": WIDE["num_attention_heads"], "k_proj": WIDE["num_key_value_heads"]}
        for name, heads in ((name, count) for name in matrices for part, count in pairs.items() if part in name):
            pair = twin[name].unflatten(0, (heads, -1, 2))
            twin[name] = torch.cat((pair[:, :, 0], pair[:, :, 1]), 1).flatten(0, 1)
    stored = write_gguf(tmp_path / "m.gguf", config, tensors, kinds=dict.fromkeys(matrices, kind), raw=raw)
    found, right = (
        WholeWindows(open_checkpoint(path), longest=len(IDS)).logits(IDS)
        for path in (stored, write_folder(tmp_path / "twin", config, tensors | twin))
    )
    assert right.std() > 0.1
    assert np.array_equal(found, right)
    held = WholeWindows(open_checkpoint(stored), longest=len(IDS), hold="all")  # as it is, and so in other sums
    np.testing.assert_allclose(held.logits(IDS), right, rtol=0, atol=2e-5 * np.abs(right).max())
    for weight, name in ((held._model.embedding, "model.embed_tokens"), (held._model.head, "lm_head")):
        assert isinstance(weight, Grouped) and torch.equal(weight.dequantise(), twin[f"{name}.weight"])
        assert weight.nbytes == raw[f"{name}.weight"].nbytes
    assert said_bytes(stored, "auto")[1] == kept_bytes(held._model)


class Fast(Reference):
    """A device whose kernels multiply quantised matrices at their best."""

    quantised = True


@pytest.mark.parametrize("kind", [Q.Q4_0, Q.Q4_1], ids=lambda kind: kind.name)
def test_blocks_of_4_bits_are_kept_where_the_device_multiplies_them_but_for_the_embedding(
    tmp_path: Path, kind: Q
) -> None:
    tensors = random_tensors(WIDE)
    matrices = [name for name in tensors if name.endswith(("_proj.weight", "embed_tokens.weight", "lm_head.weight"))]
    raw = {name: random_blocks(kind, *tensors[name].shape) for name in matrices}
    path = write_gguf(tmp_path / "m.gguf", WIDE, tensors, kinds=dict.fromkeys(matrices, kind), raw=raw)
    checkpoint, config = open_checkpoint(path), EngineConfig(model=path, dtype="bfloat16", kv_memory=1 << 20)
    runner = ModelRunner(checkpoint, config, Fast(), device=torch.device("cpu"), dtype=torch.bfloat16)
    model = runner._model
    assert torch.equal(model.embedding, torch.from_numpy(checkpoint.array("model.embed_tokens.weight")).bfloat16())
    assert isinstance(model.head, W4A16)
    assert np.array_equal(model.layers[0].output.dequantise().numpy(),
                          checkpoint.array("model.layers.0.self_attn.o_proj.weight"))  # fmt: skip


def test_what_is_multiplied_as_one_stays_as_it_is_only_together_and_check_says_so(tmp_path: Path) -> None:
    """q, k and v, of which k is plain; gate and up, of which one is in MXFP4: those become floats."""
    tensors = random_tensors(WIDE)
    matrices = [name for name in tensors if name.endswith(("_proj.weight", "embed_tokens.weight", "lm_head.weight"))]
    kinds = {name: Q.Q8_0 for name in matrices if ".k_proj." not in name}
    gate = "model.layers.0.mlp.gate_proj.weight"
    blocks = np.random.default_rng(0).integers(0, 256, (256, 8, 17), dtype=np.uint8)
    blocks[..., 0] = 120  # the exponent of 2^-7
    path = write_gguf(
        tmp_path / "m.gguf", WIDE, tensors, kinds=kinds | {gate: Q.MXFP4}, raw={gate: blocks.reshape(256, -1)}
    )
    held, floats = (WholeWindows(open_checkpoint(path), longest=len(IDS), hold=hold) for hold in ("all", "experts"))
    layer = held._model.layers[0]
    assert isinstance(layer.output, Grouped) and isinstance(layer.mlp.down, Grouped)
    assert isinstance(layer.qkv, torch.Tensor) and isinstance(layer.mlp.gate_up, torch.Tensor)
    right = floats.logits(IDS)
    np.testing.assert_allclose(held.logits(IDS), right, rtol=0, atol=2e-5 * np.abs(right).max())
    assert said_bytes(path, "auto")[1] == kept_bytes(held._model)
