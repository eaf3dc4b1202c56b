"""Quantised Hugging Face folders with random numbers, by rules of their own, and what they stand for. Not a test.

Each maker gives the tensors that a matrix [out, in] is stored as, by the last part of their names, and its weights in
float64.
"""
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tiny_models import Tensors, random_tensors, write_folder

Array = NDArray[Any]
Made = tuple[Tensors, Array]


def words(numbers: Array, bits: int) -> torch.Tensor:
    """[rows, n] -> int32 [rows, n * bits / 32 rounded up]: each row is one long number, written from its lowest end."""
    count = -(-numbers.shape[1] * bits // 32)
    lines = [sum(int(number) << bits * at for at, number in enumerate(row)) for row in numbers]
    data = b"".join(line.to_bytes(4 * count, "little") for line in lines)
    return torch.from_numpy(np.frombuffer(data, "<i4").reshape(-1, count).copy())


def scales_of(random: np.random.Generator, *shape: int) -> torch.Tensor:
    return torch.from_numpy(random.uniform(0.001, 0.02, shape).astype(np.float16))


def awq(random: np.random.Generator, out: int, width: int, group: int) -> Made:
    groups = -(-width // group)
    codes, zeros = random.integers(0, 16, (width, out)), random.integers(0, 16, (groups, out))
    scales = scales_of(random, groups, out)
    own = np.arange(width) // group
    weights = (codes - zeros[own]) * scales.double().numpy()[own]

    def stored(numbers: Array) -> torch.Tensor:
        return words(numbers.reshape(-1, 8)[:, [0, 2, 4, 6, 1, 3, 5, 7]], 4).view(len(numbers), -1)

    return {"qweight": stored(codes), "qzeros": stored(zeros), "scales": scales}, weights.T


def gptq(
    random: np.random.Generator, out: int, width: int, group: int, *, bits: int = 4, scattered: bool = False,
    symmetric: bool = False, raised: int = 1,
) -> Made:
    groups = -(-width // group)
    codes = random.integers(0, 1 << bits, (width, out))
    stored = random.integers(0, 1 << bits, (groups, out))
    if symmetric:
        stored[:] = (1 << bits - 1) - raised
    scales = scales_of(random, groups, out)
    own = np.arange(width) // group
    if scattered:
        own = random.permutation(own)
    weights = (codes - stored[own] - raised) * scales.double().numpy()[own]
    tensors = {"qweight": words(codes.T, bits).T.contiguous(), "qzeros": words(stored, bits), "scales": scales}
    return tensors | {"g_idx": torch.from_numpy(own.astype(np.int32))}, weights.T


def packed(
    random: np.random.Generator, out: int, width: int, group: int | None, *, bits: int = 4, symmetric: bool = True,
    scattered: bool = False, plain_zeros: bool = False,
) -> Made:
    groups = 1 if group is None else -(-width // group)
    middle = 1 << bits - 1
    codes = random.integers(0, 1 << bits, (out, width))
    zeros = np.full((out, groups), middle) if symmetric else random.integers(0, 1 << bits, (out, groups))
    scales = scales_of(random, out, groups).bfloat16()
    own = np.arange(width) // (group or width)
    tensors = {"weight_packed": words(codes, bits), "weight_shape": torch.tensor([out, width]), "weight_scale": scales}
    if scattered:
        own = random.permutation(own)
        tensors["weight_g_idx"] = torch.from_numpy(own.astype(np.int32))
    if not symmetric:
        signed = torch.from_numpy((zeros - middle).astype(np.int8))
        tensors["weight_zero_point"] = signed if plain_zeros else words(zeros.T, bits).T.contiguous()
    return tensors, (codes - zeros[:, own]) * scales.double().numpy()[:, own]


def int8(random: np.random.Generator, out: int, width: int, *, symmetric: bool = True, by: str = "channel") -> Made:
    codes = random.integers(-128, 128, (out, width))
    shape = (1,) if by == "tensor" else (out, 1)
    zeros = np.zeros(shape, np.int64) if symmetric else random.integers(-128, 128, shape)
    scales = torch.from_numpy(random.uniform(0.001, 0.02, shape).astype(np.float32))
    tensors = {"weight": torch.from_numpy(codes.astype(np.int8)), "weight_scale": scales}
    if not symmetric:
        tensors["weight_zero_point"] = torch.from_numpy(zeros.astype(np.int8))
    return tensors, (codes - zeros) * scales.double().numpy()


def fp8(
    random: np.random.Generator, out: int, width: int, *, by: str = "channel", block: tuple[int, int] = (128, 128),
    name: str = "weight_scale",
) -> Made:
    weight = torch.from_numpy(random.standard_normal((out, width)) * 100).to(torch.float8_e4m3fn)
    down, across = {"tensor": (out, width), "channel": (1, width), "block": block}[by]
    shape = (-(-out // down), -(-width // across))
    scales = torch.from_numpy(random.uniform(0.0001, 0.002, shape).astype(np.float32))
    wide = scales.double().repeat_interleave(down, 0).repeat_interleave(across, 1)[:out, :width]
    kept = scales.view(()) if by == "tensor" else scales
    return {"weight": weight, name: kept}, (weight.double() * wide).numpy()


def compressed(form: str, *, ignore: tuple[str, ...] = ("lm_head",), **weights: Any) -> dict[str, Any]:
    said = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True, "group_size": None} | weights
    group = {"targets": ["Linear"], "weights": said, "input_activations": None, "output_activations": None}
    return {
        "quant_method": "compressed-tensors", "format": form, "ignore": list(ignore), "kv_cache_scheme": None,
        "quantization_status": "compressed", "config_groups": {"group_0": group}, "sparsity_config": {},
    }  # fmt: skip


def write_quantised(
    folder: Path, config: dict[str, Any], said: Mapping[str, Any], make: Callable[[int, int], Made],
    *, extra: Tensors | None = None,
) -> dict[str, Array]:
    """A folder whose layers' matrices are quantised; what each tensor stands for, in float64 where it is."""
    tensors = {name: values if "norm" in name else values * 0.1 for name, values in random_tensors(config).items()}
    right: dict[str, Array] = {name: values.double().numpy() for name, values in tensors.items()}
    stored: Tensors = {}
    for name, values in tensors.items():
        if not name.endswith("_proj.weight"):
            stored[name] = values
            continue
        made, right[name] = make(*values.shape)
        stored |= {f"{name.removesuffix('.weight')}.{part}": tensor for part, tensor in made.items()}
    write_folder(folder, config | {"quantization_config": dict(said)}, stored | (extra or {}))
    return right
