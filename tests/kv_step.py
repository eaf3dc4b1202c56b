"""kv_step: a step's rows over a cache in which all that no row has written is not-a-number. For the tests beside it."""
from dataclasses import dataclass

import torch
from torch import Tensor

from hamdam.kernels.ops import Rows
from hamdam.kernels.triton import attention_reference
from hamdam.kernels.triton.kv_format import new_cache

BLOCK, LAYERS, LAYER = 16, 2, 1
TOLERANCE = {torch.float32: 3e-6, torch.float16: 2e-3, torch.bfloat16: 1e-2}  # of numbers around 1


@dataclass
class Step:
    rows: Rows
    cache: Tensor
    query: Tensor  # [T, H, D]


def make_step(
    counts: list[int], contexts: list[int], *, heads: int = 2, kv_heads: int = 1, dim: int = 64,
    dtype: torch.dtype = torch.float32, kv_dtype: torch.dtype | None = None, device: torch.device,
) -> Step:
    """Rows of the last `counts` of `contexts` tokens, in blocks that are spread at random; their KV is stored."""
    needed = [-(-context // BLOCK) for context in contexts]
    blocks = torch.randperm(sum(needed) + 3)
    tables = torch.full((len(counts), max(needed, default=0)), int(blocks[-1]))
    for table, own in zip(tables, blocks.split([*needed, 3]), strict=False):
        table[: len(own)] = own
    positions = [torch.arange(context) for context in contexts]
    slots = [table[at // BLOCK] * BLOCK + at % BLOCK for table, at in zip(tables, positions, strict=True)]
    nothing = torch.empty(0, dtype=torch.int64)
    rows = Rows(
        query_starts=torch.tensor([0, *counts]).cumsum(0).to(device),
        context_lengths=torch.tensor(contexts, dtype=torch.int64).to(device),
        block_tables=tables.to(device),
        slots=torch.cat([nothing, *(slot[-n:] for slot, n in zip(slots, counts, strict=True))]).to(device),
    )
    cache = new_cache(LAYERS, len(blocks), BLOCK, kv_heads, dim, dtype=kv_dtype or dtype, device=device)
    cache.view(torch.uint8).fill_(0xFF)  # not-a-number in every float dtype, of codes as well as scales
    key, value = torch.randn(2, sum(contexts), kv_heads, dim).to(device, dtype)
    attention_reference.store(key, value, cache, LAYER, torch.cat([nothing, *slots]).to(device))
    return Step(rows, cache, torch.randn(sum(counts), heads, dim).to(device, dtype))


def assert_close(found: Tensor, right: Tensor, *, times: int = 1) -> None:
    """right is float32; `times` the tolerance of found's dtype."""
    tolerance = TOLERANCE[found.dtype] * times
    torch.testing.assert_close(found.float(), right, rtol=tolerance, atol=tolerance, equal_nan=True)
