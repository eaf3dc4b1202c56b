"""Numbers as PyTorch tensors, without a copy, and quantised matrices in the forms of kernels/quantized.py.

The one file of this room that needs PyTorch.
"""
import math
from collections.abc import Iterator

import numpy as np
import torch

from hamdam.kernels.quantized import BYTE_RUN, FP8_BLOCK, RUN, W4A16, W8A16, pack_bytes, pack_int4
from hamdam.kernels.quantized_gguf import from_gguf
from hamdam.kernels.unpacked import KeptRows, Mxfp4

from ..models.weights import PACKED, Piece
from .coded import Coded
from .contents import EXPERT, Weights
from .held import Held, HeldBlocks
from .numbers import DTYPES, Numbers, spans

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


def as_tensor(numbers: Numbers) -> torch.Tensor:
    """In the memory of `numbers` and in its dtype."""
    tensor = torch.from_numpy(numbers.values)
    return tensor.view(torch.bfloat16) if numbers.dtype == "BF16" else tensor


def pieces(weights: Weights, *, keep: bool, hold: bool) -> Iterator[tuple[str, Piece]]:
    """As Checkpoint.pieces. A matrix is in memory twice while it is packed: so the head, the largest, comes first, when
    there is nothing else yet, and the embedding, as large and never packed, last."""
    for name in sorted(weights.shapes, key=lambda name: (name != HEAD, name == EMBEDDING)):
        shape = weights.shapes[name]
        kept = keep and name.endswith(PACKED) and weights.formats[name] not in DTYPES
        if EXPERT in name and (hold or weights.formats[name] == "MXFP4"):
            held = weights.held(name)
            if held is not None:
                yield name, Piece(0, _held(held), shape)
                continue
        for rows in spans(range(shape[0]), math.prod(shape[1:]), unit=FP8_BLOCK if kept else 1):
            values = _quantised(weights, name, rows) if kept else None
            yield name, Piece(rows.start, as_tensor(weights.read(name, rows)) if values is None else values, shape)


def _held(matrix: Held) -> Mxfp4 | KeptRows:
    if isinstance(matrix, HeldBlocks) and matrix.format.name == "MXFP4":
        blocks = torch.from_numpy(matrix.blocks)
        return Mxfp4(blocks[..., 1:], blocks[..., 0])

    def make(first: int, end: int) -> torch.Tensor:
        return torch.from_numpy(matrix.float32(range(first, end)))

    return KeptRows(matrix.shape, make, matrix.nbytes)


def _quantised(weights: Weights, name: str, rows: range) -> W4A16 | W8A16 | None:
    """As they are stored, to the bit; None where they are stored as plain numbers, or as no form has them."""
    coded = weights.coded(name, rows)
    if coded is not None:
        return _four_bits(coded) if coded.bits <= 4 else _eight_bits(coded)
    if weights.bits(name) != 4:
        return None
    blocks = weights.quantized(name, rows)
    return None if blocks is None else from_gguf(torch.from_numpy(blocks.blocks), blocks.format)


def _four_bits(coded: Coded) -> W4A16 | None:
    """Groups of 32, 64 or a multiple of 128; where they are scattered, the inputs are put in the order of groups."""
    inputs, size = coded.codes.shape[1], coded.size
    if inputs % RUN or inputs % size or not (size in (32, 64) or size % 128 == 0) or coded.zeros is None:
        return None
    codes, permutation = torch.from_numpy(coded.codes), None
    if coded.groups is not None:
        if (np.bincount(coded.groups, minlength=inputs // size) != size).any():
            return None
        permutation = torch.from_numpy(coded.groups.argsort(kind="stable"))
        codes = codes[:, permutation]
    scales, zeros = (torch.from_numpy(np.ascontiguousarray(x.T)) for x in (coded.scales, coded.zeros))
    halves = scales.half()
    if bool((halves.float() == scales).all()):
        scales = halves
    return W4A16(pack_int4(codes), scales, None if (zeros == 8).all() else zeros.to(torch.uint8), permutation)


def _eight_bits(coded: Coded) -> W8A16 | None:
    """A scale for each output, or of FP8 for each block of 128 outputs and inputs."""
    codes, scales = torch.from_numpy(coded.codes), torch.from_numpy(np.ascontiguousarray(coded.scales))
    if codes.shape[1] % BYTE_RUN:
        return None
    by_row = scales.shape[1] == 1
    if coded.zeros is not None:
        if not by_row or not (coded.zeros == 128).all():
            return None
        return W8A16(pack_bytes(codes ^ 128), scales[:, 0].contiguous(), torch.int8)
    if by_row and coded.block == 1:
        return W8A16(pack_bytes(codes), scales[:, 0].contiguous(), torch.float8_e4m3fn)
    if (coded.block, coded.size) != (FP8_BLOCK, FP8_BLOCK):
        return None
    return W8A16(pack_bytes(codes), scales[::FP8_BLOCK].contiguous(), torch.float8_e4m3fn)
