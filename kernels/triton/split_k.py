"""split_k: where programs that share a product's inputs put their sums, and the kernel that adds these. No atomics.

Sums are added in the order of the splits: what came first would decide how an atomic sum is rounded, and the same
request would be answered differently.
"""
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from .chip import chip_of
from .product import converted
from .tile import Tile
from .variant import Variant, meta

LEAST_SPLIT = 512  # inputs: with fewer, a program would end before its pipeline is full
WIDTH = 1024


@dataclass(frozen=True, slots=True)
class Sums:
    """A product's result in the making. parts is `out` itself where no inputs are split, else [splits, T, n] float32.

    steps: of `tile.inputs` inputs that each program makes. grid: tiles of outputs, of tokens, splits.
    """

    out: Tensor
    parts: Tensor
    steps: int
    grid: tuple[int, int, int]

    @classmethod
    def of(cls, x: Tensor, tile: Tile, outputs: int, inputs: int, dtype: torch.dtype) -> "Sums":
        """For x [T, in] and a matrix [outputs, inputs]."""
        tokens = x.shape[0]
        own = tile.inputs_of_a_split(chip_of(x), outputs, inputs, least=LEAST_SPLIT)
        splits = -(-inputs // own)
        out = torch.empty(tokens, outputs, dtype=dtype, device=x.device)
        parts = out if splits == 1 else torch.empty(splits, tokens, outputs, dtype=torch.float32, device=x.device)
        grid = (-(-outputs // tile.outputs), -(-tokens // tile.tokens), splits)
        return cls(out, parts, own // tile.inputs, grid)

    @property
    def whole(self) -> bool:
        """One program makes all of a sum, and adds the bias to it."""
        return self.parts is self.out

    def added(self, bias: Tensor | None) -> Tensor:
        """The result [T, n], once the programs of `grid` are launched. bias: [n], added unless the sums are whole."""
        if not self.whole and self.out.numel():
            splits, tokens, n = self.parts.shape
            _add[(tokens, triton.cdiv(n, WIDTH))](
                self.parts, bias, self.out, tokens, n, splits, WIDTH, num_warps=4
            )
        return self.out


@triton.jit
def _add(parts, bias, out, tokens, n, splits, WIDTH: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    mask = column < n
    total = tl.zeros((WIDTH,), tl.float32)
    for split in range(splits):
        total += tl.load(parts + (split * tokens + row) * n + column, mask, other=0.0)
    if bias is not None:
        total += tl.load(bias + column, mask, other=0.0).to(tl.float32)
    tl.store(out + row * n + column, converted(total, out.dtype.element_ty), mask)


def _variants() -> tuple[Variant, ...]:
    parts, out = meta(8, 16, 4096, dtype=torch.float32), meta(16, 4096)
    sums = Sums(out, parts, 1, (1, 1, 8))
    return (Variant("8 splits of 16 x 4096", lambda: sums.added(None), parts.nbytes + out.nbytes, parts.numel()),)


VARIANTS = _variants()
