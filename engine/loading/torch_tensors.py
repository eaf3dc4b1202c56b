"""Numbers as PyTorch tensors, without a copy, and quantised matrices in the forms of kernels/.

The one file of this room that needs PyTorch.
"""
import math
from collections.abc import Callable, Collection, Iterator

import numpy as np
import torch

from hamdam.kernels.grouped import Grouped, Ints, Scales
from hamdam.kernels.quantized import BYTE_RUN, FP8_BLOCK, RUN, W4A16, W8A16, pack_bytes, pack_int4
from hamdam.kernels.quantized_gguf import from_gguf
from hamdam.kernels.unpacked import Mxfp4

from ..models.weights import PACKED, Piece
from .coded import E4M3, Coded
from .contents import EMBEDDING, EXPERT, HEAD, Weights
from .gguf import block_named
from .gguf.blocks import Scales as BlockScales
from .numbers import DTYPES, Numbers, Quantized, spans

SCALES = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32}
Reads = Callable[[Weights, str, range], torch.Tensor | W4A16 | W8A16 | Mxfp4 | Grouped]
"""Some rows of a tensor, by its name."""


def as_tensor(numbers: Numbers) -> torch.Tensor:
    """In the memory of `numbers` and in its dtype."""
    tensor = torch.from_numpy(numbers.values)
    return tensor.view(torch.bfloat16) if numbers.dtype == "BF16" else tensor


def pieces(weights: Weights, *, keep: bool, held: Collection[str]) -> Iterator[tuple[str, Piece]]:
    """As Checkpoint.pieces. A matrix is in memory twice while it is packed: so the head, the largest, comes first, when
    there is nothing else yet, and the embedding, as large and never packed, last."""
    for name in sorted(weights.shapes, key=lambda name: (name != HEAD, name == EMBEDDING)):
        shape = weights.shapes[name]
        form: Reads = _plain
        if name in held or (EXPERT in name and weights.formats[name] == "MXFP4"):
            form = _held
        elif keep and name.endswith(PACKED) and weights.formats[name] not in DTYPES:
            form = _quantised
        for rows in spans(range(shape[0]), math.prod(shape[1:]), unit=FP8_BLOCK if form is _quantised else 1):
            yield name, Piece(rows.start, form(weights, name, rows), shape)


def _plain(weights: Weights, name: str, rows: range) -> torch.Tensor:
    return as_tensor(weights.read(name, rows))


def _held(weights: Weights, name: str, rows: range) -> Mxfp4 | Grouped:
    """As they are stored, whatever that is."""
    if (blocks := weights.blocks(name, rows)) is not None:
        return _of_blocks(blocks)
    coded = weights.coded(name, rows)
    assert coded is not None
    return _of_coded(coded)


def _of_blocks(stored: Quantized) -> Mxfp4 | Grouped:
    rows, columns = stored.shape
    if stored.format == "MXFP4":
        blocks = torch.from_numpy(stored.blocks)
        return Mxfp4(blocks[..., 1:], blocks[..., 0])
    parts = block_named(stored.format).parts_of(stored.blocks.reshape(-1, stored.blocks.shape[2]))

    def scales(own: BlockScales) -> Scales:
        floats = torch.from_numpy(own.floats).view(rows, -1)
        if own.steps is None:
            return Scales(floats)
        return Scales(floats, Ints.packed(torch.from_numpy(own.steps).view(rows, -1), own.bits), own.middle)

    return Grouped(
        Ints.packed(torch.from_numpy(parts.codes).view(rows, columns), parts.bits), scales(parts.scales),
        None if parts.low is None else scales(parts.low), parts.zero,
        None if parts.table is None else torch.from_numpy(parts.table),
    )  # fmt: skip


def _of_coded(coded: Coded) -> Grouped:
    inputs, count = coded.codes.shape[1], coded.scales.shape[1]
    groups = coded.groups
    if groups is None and inputs != count * min(coded.size, inputs):  # the last is smaller
        groups = np.arange(inputs) // coded.size
    scales = torch.from_numpy(coded.scales).to(SCALES[coded.scales_dtype])
    zeros: torch.Tensor | int = 0
    if coded.zeros is not None:
        zeros = 1 << coded.bits - 1 if coded.centred else torch.from_numpy(coded.zeros).to(torch.int16)
    return Grouped(
        Ints.packed(torch.from_numpy(coded.codes), coded.bits), Scales(scales.contiguous()), None, zeros,
        torch.from_numpy(E4M3) if coded.zeros is None else None,
        None if groups is None else torch.from_numpy(groups.astype(np.int32)),
    )


def _quantised(weights: Weights, name: str, rows: range) -> W4A16 | W8A16 | torch.Tensor:
    """As they are stored, to the bit, where a form of the kernels has them; else as floats."""
    found = _of_kernels(weights, name, rows)
    return _plain(weights, name, rows) if found is None else found


def _of_kernels(weights: Weights, name: str, rows: range) -> W4A16 | W8A16 | None:
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
