"""How fast each kernel is at sizes past the L2 cache, and the bytes and operations that it cannot do without."""
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from kernel_checks import BF16, FP8, INT8, Sizes, made
from kv_step import BLOCK
from stopwatch import Call
from torch import Tensor
from torch.nn import functional as F

from hamdam.kernels.ops import Rows
from hamdam.kernels.quantized import QuantizedWeight
from hamdam.kernels.triton import gated, quant_linear, store_kv
from hamdam.kernels.triton.kv_format import new_cache
from hamdam.kernels.triton.paged_attention import paged_attention
from hamdam.kernels.triton.rms_norm import rms_norm
from hamdam.kernels.triton.sample import sample
from hamdam.kernels.triton.w16a16 import w16a16


@dataclass(frozen=True)
class Timing:
    """bytes and flops: that a call reads and writes in memory at the least, and multiplies and adds.

    make: builds what the calls need; made in turn, each with data of its own, none finds it in a cache.
    """

    name: str
    bytes: int
    flops: int
    make: Callable[[], list[Call]]


@dataclass(frozen=True)
class Amounts:
    past_cache: int  # bytes that calls go round in
    decodes: tuple[tuple[int, int], ...]  # rows, context
    prompts: tuple[tuple[int, int], ...]  # tokens, context
    few: tuple[int, ...]  # tokens of a product
    many: int


LARGE = Amounts(256 << 20, ((1, 8192), (16, 1024), (64, 1024), (256, 1024), (16, 8192)), ((2048, 2048), (512, 8192)),
                (1, 16, 64, 256), 2048)
TINY = Amounts(0, ((2, 40),), ((20, 20),), (1,), 20)


def timings(device: torch.device, s: Sizes, a: Amounts) -> Iterator[Timing]:
    yield from _attention(device, s, a)
    yield from _products(device, s, a)
    yield from _rows(device, s, a)


def _attention(device: torch.device, s: Sizes, a: Amounts) -> Iterator[Timing]:
    def timing(
        name: str, counts: list[int], contexts: list[int], kv: torch.dtype, *, invariant: bool = False
    ) -> Timing:
        layer = sum(contexts) * 2 * s.kv_heads * (s.dim + (4 if kv.itemsize == 1 else 0)) * kv.itemsize
        seen = sum(n * context - n * (n - 1) // 2 for n, context in zip(counts, contexts, strict=True))
        passed = 2 * sum(counts) * s.heads * s.dim * 2
        return Timing(name, layer + passed, 4 * seen * s.heads * s.dim,
                      partial(calls, counts, contexts, kv, 1 + a.past_cache // layer, invariant))

    def calls(counts: list[int], contexts: list[int], kv: torch.dtype, layers: int, invariant: bool) -> list[Call]:
        needed = [-(-context // BLOCK) for context in contexts]
        order = torch.randperm(sum(needed), generator=torch.Generator().manual_seed(0)).split(needed)
        tables = torch.nn.utils.rnn.pad_sequence(list(order), batch_first=True).to(device)
        starts = torch.tensor([0, *counts], device=device).cumsum(0)
        rows = Rows(starts, torch.tensor(contexts, device=device), tables, starts.new_zeros(sum(counts)))
        cache = new_cache(layers, sum(needed), BLOCK, s.kv_heads, s.dim, dtype=kv, device=device)
        cache.view(torch.uint8).zero_()
        query = torch.randn(sum(counts), s.heads, s.dim, device=device).to(BF16)
        attention = paged_attention(cache, rows, scale=s.dim**-0.5, invariant=invariant)
        return [partial(attention, layer, query) for layer in range(layers)]

    names = {BF16: "bf16", FP8: "fp8", INT8: "int8"}
    for rows, context in a.decodes:
        for kv, name in names.items():
            yield timing(f"attention, {rows} of {context:,}, KV {name}", [1] * rows, [context] * rows, kv)
    rows, context = a.decodes[0]
    yield timing(f"attention, {rows} of {context:,}, invariant", [1] * rows, [context] * rows, BF16, invariant=True)
    for tokens, context in a.prompts:
        yield timing(f"attention, prompt, {tokens:,} of {context:,}", [tokens], [context], BF16)
    tokens, context = a.prompts[0]
    yield timing(f"attention, prompt, {tokens:,}, KV fp8", [tokens], [context], FP8)
    yield timing(f"attention, prompt, {tokens:,}, invariant", [tokens], [context], BF16, invariant=True)


def _products(device: torch.device, s: Sizes, a: Amounts) -> Iterator[Timing]:
    gate_up, down = (2 * s.wide, s.hidden), (s.hidden, s.wide)

    def calls(
        tokens: int, shape: tuple[int, int], weight: Callable[[], Tensor | QuantizedWeight], size: int,
        multiply: Callable[..., object],
    ) -> list[Call]:
        x = torch.randn(tokens, shape[1], device=device).to(BF16)
        return [partial(multiply, x, weight()) for _ in range(1 + a.past_cache // size)]

    def timing(
        kind: str, tokens: int, shape: tuple[int, int], weight: Callable[[], Tensor | QuantizedWeight], bits: float,
        multiply: Callable[..., object],
    ) -> Timing:
        size = int(shape[0] * shape[1] * bits / 8)
        return Timing(f"{kind}, {tokens} × {shape[1]} × {shape[0]}", size + 2 * tokens * sum(shape),
                      2 * tokens * shape[0] * shape[1], partial(calls, tokens, shape, weight, size, multiply))

    forms = {"int4": 4 + 16 / s.group, "fp8": 8, "w8a8-fp8": 8, "w8a8-fp8 block": 8, "w8a8-int8": 8}
    for tokens in (*a.few, a.many):
        for shape in (gate_up, down):
            plain = partial(torch.randn, *shape, device=device, dtype=BF16)
            yield timing("bf16 (PyTorch)", tokens, shape, plain, 16, F.linear)
            yield timing("bf16 invariant", tokens, shape, plain, 16, w16a16)
        for form, bits in forms.items():
            weight = partial(made, form, *gate_up, s.group, device)
            yield timing(form, tokens, gate_up, weight, bits, quant_linear.linear)


def _rows(device: torch.device, s: Sizes, a: Amounts) -> Iterator[Timing]:
    def norm(tokens: int) -> list[Call]:
        x, residual = torch.randn(2, tokens, s.hidden, device=device).to(BF16)
        return [partial(rms_norm, x, torch.ones_like(x[0]), 1e-5, residual=residual)]

    def gate(tokens: int) -> list[Call]:
        return [partial(gated.silu_and_mul, torch.randn(tokens, 2 * s.wide, device=device).to(BF16))]

    def store(tokens: int) -> list[Call]:
        qkv = torch.randn(tokens, s.heads + 2 * s.kv_heads, s.dim, device=device).to(BF16)
        parts, turns = qkv.split((s.heads, s.kv_heads, s.kv_heads), 1), torch.rand(2, tokens, 1, s.dim, device=device)
        blocks = -(-tokens // BLOCK)
        cache = new_cache(1, blocks, BLOCK, s.kv_heads, s.dim, dtype=BF16, device=device)
        slots = torch.randperm(blocks * BLOCK, device=device)[:tokens]
        return [partial(store_kv.turn_and_store, *parts, *turns, cache, 0, slots)]

    def draw(rows: int, top_p: float) -> list[Call]:
        logits = torch.randn(rows, s.words, device=device) * 3
        heat, mass, least, drawn = (torch.full((rows,), x, device=device).double() for x in (1.0, top_p, 0.0, 0.5))
        top_k = torch.zeros(rows, dtype=torch.int64, device=device)
        return [partial(sample, logits, heat, top_k, mass, least, drawn)]

    qkv = (s.heads + 2 * s.kv_heads) * s.dim
    for tokens in (a.few[-1], a.many):
        yield Timing(f"rms_norm with residual, {tokens}", 8 * tokens * s.hidden, 0, partial(norm, tokens))
        yield Timing(f"silu_and_mul, {tokens}", 6 * tokens * s.wide, 0, partial(gate, tokens))
        yield Timing(f"norm, turn and store, {tokens}", tokens * (4 * qkv + 8 * s.dim), 0, partial(store, tokens))
    rows = a.few[-1]
    for name, top_p in (("at random", 1.0), ("top_p 0.9", 0.9)):
        yield Timing(f"sample {name}, {rows}", 4 * rows * s.words, 0, partial(draw, rows, top_p))
