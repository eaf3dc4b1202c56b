"""w16a16: rows of floats times a matrix of floats, so that a row's sum is the same in any company. Otherwise PyTorch's
product is used, whose kernel and with it the order of its sums is chosen by how many rows there are.

Inputs are cut into splits by the matrix alone. Few rows leave a processor without work, so there each split is a
program's own and split_k.py adds them; of many rows a program makes one split after another and adds them itself, in
the same order: the same bits.
"""
from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from .chip import chip_of
from .product import converted, product
from .split_k import LEAST_SPLIT, Sums
from .tile import Tile
from .variant import Variant, meta

TILE = Tile(tokens=64, outputs=128, inputs=64, warps=4, stages=4, fill=1)
FLOAT32_TILE = Tile(tokens=32, outputs=64, inputs=32, warps=4, stages=2, fill=1)  # for tests


def w16a16(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [T, in], weight [out, in] and bias [out], all of one dtype -> [T, out]."""
    tokens, (outputs, inputs) = x.shape[0], weight.shape
    x, weight = (each if each.stride(1) == 1 else each.contiguous() for each in (x, weight))
    tile, chip = FLOAT32_TILE if x.dtype == torch.float32 else TILE, chip_of(x)
    own = tile.inputs_of_a_split(chip, outputs, inputs, least=LEAST_SPLIT)
    splits = -(-inputs // own)
    across, down = -(-tokens // tile.tokens), -(-outputs // tile.outputs)
    apart = splits > 1 and across * down < chip.processors
    out = torch.empty(tokens, outputs, dtype=x.dtype, device=x.device)
    parts = torch.empty(splits, tokens, outputs, dtype=torch.float32, device=x.device) if apart else out
    grid = (across, down, splits if apart else 1)  # tokens first: programs that run together read the same weights
    sums = Sums(out, parts, own // tile.inputs, grid)
    if tokens:
        _w16a16[grid](
            x, weight, bias if sums.whole else None, parts, tokens, outputs, inputs, x.stride(0), weight.stride(0),
            sums.steps, 1 if apart else splits, inputs % tile.inputs == 0, tile.tokens, tile.outputs, tile.inputs,
            num_warps=tile.warps,
            num_stages=tile.stages_on(chip, tile.inputs * (tile.tokens + tile.outputs) * x.itemsize),
        )
    return sums.added(bias)


@triton.jit(do_not_specialize=["tokens"])
def _w16a16(
    x, weight, bias, out, tokens, outputs, inputs, x_stride, stride, steps, SPLITS: tl.constexpr, EVEN: tl.constexpr,
    TOKENS: tl.constexpr, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr,
):
    """SPLITS: that this program makes, from the one of its number in the grid on."""
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    output = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    first = tl.program_id(2)
    row = tl.minimum(output, outputs - 1)  # what is read twice is not stored
    column = tl.arange(0, INPUTS)
    weight += row.to(tl.int64)[:, None] * stride + column[None, :]
    x += tl.minimum(token, tokens - 1).to(tl.int64)[None, :] * x_stride + column[:, None]
    total = tl.zeros((OUTPUTS, TOKENS), tl.float32)
    for split in range(first, first + SPLITS):
        part = tl.zeros((OUTPUTS, TOKENS), tl.float32)
        for step in range(split * steps, tl.minimum((split + 1) * steps, tl.cdiv(inputs, INPUTS))):
            at = step * INPUTS
            if EVEN:
                weights, numbers = tl.load(weight + at), tl.load(x + at)
            else:
                inside = at + column < inputs
                weights = tl.load(weight + at, inside[None, :], other=0.0)
                numbers = tl.load(x + at, inside[:, None], other=0.0)
            part = product(weights, numbers, part)
        total += part
    if bias is not None:
        total += tl.load(bias + row).to(tl.float32)[:, None]
    at = (first * tokens + token.to(tl.int64)[None, :]) * outputs + output[:, None]
    tl.store(out + at, converted(total, out.dtype.element_ty), (output < outputs)[:, None] & (token < tokens)[None, :])


def _variants() -> tuple[Variant, ...]:
    """Matrices of Llama 8B: attention's output, 4096 x 4096, and the head."""

    def variant(tokens: int, outputs: int, inputs: int) -> Variant:
        x, weight = meta(tokens, inputs), meta(outputs, inputs)
        moved = x.nbytes + weight.nbytes + 2 * tokens * outputs
        return Variant(f"{tokens} x {outputs} x {inputs}", partial(w16a16, x, weight), moved,
                       2 * tokens * outputs * inputs, claims={"sm_90": "HGMMA"})

    return variant(1, 4096, 4096), variant(64, 128_256, 4096), variant(2048, 4096, 4096)


VARIANTS = _variants()
