"""penalise: logits less their penalties, as kernels/penalties.py defines them. Drawing from them is sample.py."""
import torch
import triton
import triton.language as tl
from torch import Tensor

from ..penalties import Penalties
from .variant import Variant, meta

WIDTH = 2048


def penalise(logits: Tensor, penalties: Penalties) -> Tensor:
    """logits [R, V] of any float dtype -> [R, V] float32."""
    rows, n = logits.shape
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    out = torch.empty(rows, n, dtype=torch.float32, device=logits.device)
    if out.numel():
        _penalise[(triton.cdiv(n, WIDTH), rows)](
            logits, penalties.generated, penalties.prompted, penalties.repetition, penalties.frequency,
            penalties.presence, out, n, logits.stride(0), WIDTH, num_warps=4,
        )
    return out


@triton.jit
def _penalise(logits, generated, prompted, repetition, frequency, presence, out, n, stride, WIDTH: tl.constexpr):
    row = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    mask = column < n
    x = tl.load(logits + row * stride + column, mask, other=0.0).to(tl.float32)
    count = tl.load(generated + row * n + column, mask, other=0)
    there = (count > 0) | (tl.load(prompted + row * n + column, mask, other=0) != 0)
    again = tl.load(repetition + row)
    x = tl.where(there, tl.where(x > 0, x / again, x * again), x)
    x -= tl.load(frequency + row) * count.to(tl.float32)
    x -= tl.load(presence + row) * (count > 0).to(tl.float32)
    tl.store(out + row * n + column, x, mask)


def _variants() -> tuple[Variant, ...]:
    rows, n = 64, 128_256
    logits = meta(rows, n)
    counts, prompted = meta(rows, n, dtype=torch.int32), meta(rows, n, dtype=torch.bool)
    strengths = (meta(rows, dtype=torch.float32) for _ in range(3))
    penalties = Penalties(counts, prompted, *strengths)
    moved = logits.nbytes + counts.nbytes + prompted.nbytes + 4 * logits.numel()
    return (Variant(f"{rows} x {n}", lambda: penalise(logits, penalties), moved, 6 * logits.numel()),)


VARIANTS = _variants()
