"""Every kernel against its reference, in the shapes that models have. Not the tests of tests/kernels/triton: those are
many and small, these are few and take a GPU a minute, most of it to compile."""
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
from kv_step import BLOCK, LAYER, LAYERS, make_step
from torch import Tensor
from torch.nn import functional as F

from hamdam.engine.execution.trial import fault_of
from hamdam.engine.models.config import ModelConfig
from hamdam.kernels import quantized
from hamdam.kernels.kv_codes import dequantise
from hamdam.kernels.quantized import W4A16, QuantizedRows, QuantizedWeight, quantise_bytes, quantise_int4
from hamdam.kernels.reference import Reference
from hamdam.kernels.triton import attention_reference, gated, quant_linear, store_kv
from hamdam.kernels.triton.kv_format import KvCache, new_cache
from hamdam.kernels.triton.ops import TritonOps
from hamdam.kernels.triton.paged_attention import paged_attention
from hamdam.kernels.triton.quantise import quantise_rows
from hamdam.kernels.triton.rms_norm import rms_norm
from hamdam.kernels.triton.sample import sample
from hamdam.kernels.triton.w16a16 import w16a16

BF16, FP16, INT8, FP8 = torch.bfloat16, torch.float16, torch.int8, torch.float8_e4m3fn
SAME = 0.0
ROUNDED = {BF16: 6e-3, FP16: 1e-3}  # of a result's norm


@dataclass(frozen=True)
class Check:
    name: str
    error: Callable[[], float]  # of the result's norm; not-a-number where something is not finite
    limit: float


@dataclass(frozen=True)
class Sizes:
    heads: int
    kv_heads: int
    dim: int
    hidden: int
    wide: int
    words: int
    group: int  # of 4-bit weights
    decode: tuple[list[int], list[int]]  # counts and contexts, as make_step takes them
    mixed: tuple[list[int], list[int]]
    prompt: tuple[list[int], list[int]]
    long: int
    tokens: tuple[int, ...]  # of products, one for each range of tiles


LARGE = Sizes(
    32, 8, 128, 4096, 14336, 128_256, 128, ([1] * 9, [1, 16, 17, 100, 511, 512, 513, 1500, 3000]),
    ([1, 70, 1, 300], [800, 70, 33, 1000]), ([700], [700]), 16_000, (1, 16, 64, 128, 300),
)
TINY = Sizes(2, 1, 64, 64, 96, 300, 32, ([1, 1], [1, 40]), ([1, 5], [20, 9]), ([20], [20]), 80, (1, 20))


def checks(device: torch.device, sizes: Sizes, shapes: dict[str, ModelConfig], most: int) -> Iterator[Check]:
    """`most`: tokens of a step of the models of these shapes."""
    for name, shape in shapes.items():
        for invariant in (False, True):
            about = f"one layer of {name}{', invariant' if invariant else ''}, by both"
            yield Check(about, partial(_whole, TritonOps(invariant=invariant), shape, device, most), SAME)
    yield from _attention(device, sizes)
    yield from _stores(device, sizes)
    yield from _rows(device, sizes)
    yield from _products(device, sizes)
    yield from _samples(device, sizes)


def _whole(ops: TritonOps, shape: ModelConfig, device: torch.device, most: int) -> float:
    fault = fault_of(ops, shape, dtype=BF16, device=device, most=most)
    assert fault is None, fault
    return SAME


def _apart(found: Tensor, right: Tensor) -> float:
    assert found.shape == right.shape, f"{list(found.shape)}, not {list(right.shape)}"
    return float((found.float() - right.float()).norm() / right.float().norm().clamp_min(1e-12))


def _attention(device: torch.device, s: Sizes) -> Iterator[Check]:
    def error(kind: tuple[list[int], list[int]], heads: int, kv_heads: int, dim: int, dtype: torch.dtype,
              kv: torch.dtype | None, window: int | None, soft_cap: float | None, sunk: bool) -> float:
        torch.manual_seed(0)
        step = make_step(*kind, heads=heads, kv_heads=kv_heads, dim=dim, dtype=dtype, kv_dtype=kv, device=device)
        sinks = torch.randn(LAYERS, heads, device=device) if sunk else None
        said = {"scale": dim**-0.5, "window": window, "soft_cap": soft_cap}
        found = paged_attention(step.cache, step.rows, sinks=sinks, **said)(LAYER, step.query)
        own = None if sinks is None else sinks[LAYER]
        return _apart(found, attention_reference.attention(step.query, step.cache, step.rows, LAYER, sinks=own, **said))

    kinds = {"decode": s.decode, "mixed": s.mixed, "prompt": s.prompt}
    for name, kind in kinds.items():
        for kv in (None, INT8, FP8):
            about = f"attention, {name}{'' if kv is None else f', KV {_short(kv)}'}"
            yield Check(about, partial(error, kind, s.heads, s.kv_heads, s.dim, BF16, kv, None, None, False), 1e-2)
    few = s.heads // 2, s.kv_heads
    for name, kind in (("decode", s.decode), ("mixed", s.mixed)):
        yield Check(f"attention, {name}, head_dim 64, window, sinks",
                    partial(error, kind, s.heads, s.kv_heads, 64, BF16, None, 33, None, True), 1e-2)
        yield Check(f"attention, {name}, head_dim {2 * s.dim}, cap",
                    partial(error, kind, *few, 2 * s.dim, BF16, None, None, 50.0, False), 1e-2)
    yield Check(f"attention, 1 of {s.long:,}",
                partial(error, ([1], [s.long]), s.heads, s.kv_heads, s.dim, FP16, None, None, None, False), 2e-3)
    for kv in (None, INT8):
        about = f"attention, invariant: a row alone{'' if kv is None else f', KV {_short(kv)}'}"
        yield Check(about, partial(_alone, device, s, kv), SAME)


def _alone(device: torch.device, s: Sizes, kv: torch.dtype | None) -> float:
    """The last row of a mixed step, and its last token in a step of its own."""
    torch.manual_seed(0)
    step = make_step(*s.mixed, heads=s.heads, kv_heads=s.kv_heads, dim=s.dim, dtype=BF16, kv_dtype=kv, device=device)
    together = paged_attention(step.cache, step.rows, scale=0.1, invariant=True)(LAYER, step.query)
    own = replace(
        step.rows, query_starts=step.rows.query_starts.new_tensor([0, 1]), slots=step.rows.slots[-1:],
        context_lengths=step.rows.context_lengths[-1:], block_tables=step.rows.block_tables[-1:],
    )
    alone = paged_attention(step.cache, own, scale=0.1, invariant=True)(LAYER, step.query[-1:])
    return _apart(alone[0], together[-1])


def _stores(device: torch.device, s: Sizes) -> Iterator[Check]:
    def error(tokens: int, kv: torch.dtype) -> float:
        torch.manual_seed(0)
        qkv = torch.randn(tokens, s.heads + 2 * s.kv_heads, s.dim, device=device).to(BF16)
        query, key, value = qkv.split((s.heads, s.kv_heads, s.kv_heads), 1)
        angles = torch.rand(tokens, 1, s.dim // 2, device=device) * 1000
        turns = torch.cat((angles.cos(),) * 2, -1), torch.cat((-angles.sin(), angles.sin()), -1)
        norms = *(torch.rand(2, s.dim, device=device).to(BF16) + 0.5), 1e-6
        blocks = -(-tokens // BLOCK)
        slots = torch.randperm(blocks * BLOCK, device=device)[:tokens]
        found, right = (
            new_cache(1, blocks, BLOCK, s.kv_heads, s.dim, dtype=kv, device=device).view(torch.uint8).zero_().view(kv)
            for _ in range(2)
        )
        turned = store_kv.turn_and_store(query, key, value, *turns, found, 0, slots, norms=norms)
        expected = attention_reference.place(query, key, value, *turns, right, 0, slots, norms=norms)
        return max(_apart(turned, expected), _apart(_through(found, slots), _through(right, slots)))

    for tokens in (3, s.tokens[-1]):
        for kv in (BF16, INT8, FP8):
            yield Check(f"store_kv, {tokens} tokens to {_short(kv)}", partial(error, tokens, kv), 2e-2)


def _through(cache: Tensor, slots: Tensor) -> Tensor:
    """The numbers that lie in these slots, whatever the codes are that say them."""
    parts = KvCache.of(cache)
    wide = parts.codes[0].float() if parts.scales is None else dequantise(parts.codes[0], parts.scales[0])
    return wide.permute(1, 2, 0, 3, 4).flatten(2, 3)[:, :, slots]


def _rows(device: torch.device, s: Sizes) -> Iterator[Check]:
    torch.manual_seed(0)
    x, residual = torch.randn(2, 33, s.hidden, device=device).to(BF16)
    weight, gate_up = torch.rand(s.hidden, device=device).to(BF16), torch.randn(33, 2 * s.wide, device=device).to(BF16)

    def norm(out: torch.dtype | None) -> float:
        kept, own = residual.clone(), residual.clone()
        found = rms_norm(x, weight, 1e-5, residual=own, out_dtype=out)
        return max(_apart(_wide(found), Reference().rms_norm(x.float(), weight.float(), 1e-5, residual=kept.float())),
                   _apart(own, kept + x))

    def gate(out: torch.dtype | None) -> float:
        first, second = gate_up.float().chunk(2, 1)
        return max(
            _apart(_wide(gated.silu_and_mul(gate_up, out_dtype=out)), F.silu(first) * second),
            _apart(_wide(gated.gelu_and_mul(gate_up, out_dtype=out)), F.gelu(first, approximate="tanh") * second),
        )

    def quantise(dtype: torch.dtype, block: int | None) -> float:
        return _apart(_wide(quantise_rows(x, dtype, block=block)), x)

    limits = {None: 6e-3, INT8: 2e-2, FP8: 4e-2}
    for out, limit in limits.items():
        about = "" if out is None else f" to {_short(out)}"
        yield Check(f"rms_norm{about}", partial(norm, out), limit)
        yield Check(f"silu_and_mul, gelu_and_mul{about}", partial(gate, out), limit)
    for dtype, block in ((INT8, None), (FP8, None), (FP8, quantized.FP8_BLOCK)):
        about = f"quantise_rows to {_short(dtype)}{' by block' if block else ''}"
        yield Check(about, partial(quantise, dtype, block), limits[dtype])


def _wide(x: Tensor | QuantizedRows) -> Tensor:
    return x.dequantise() if isinstance(x, QuantizedRows) else x.float()


def made(form: str, outputs: int, inputs: int, group: int, device: torch.device) -> QuantizedWeight:
    weight = torch.randn(outputs, inputs, device=device) * inputs**-0.5
    match form.split():
        case "int4", *rest:
            found = quantise_int4(weight, group, symmetric="zeros" not in rest)
            return W4A16(found.packed, found.scales, torch.randn_like(found.scales)) if "offsets" in rest else found
        case kind, *rest:
            by = "block" if "block" in rest else "channel"
            found = quantise_bytes(weight, FP8 if "fp8" in kind else INT8, by=by)
            return found if kind.startswith("w8a8") else found.for_floats()


FORMS = ("int4", "int4 zeros", "int4 offsets", "int8", "fp8", "fp8 block", "w8a8-int8", "w8a8-fp8", "w8a8-fp8 block")


def _products(device: torch.device, s: Sizes) -> Iterator[Check]:
    def quantised(form: str, tokens: int) -> float:
        torch.manual_seed(0)
        weight = made(form, s.hidden, s.hidden, s.group, device)
        x, bias = torch.randn(tokens, s.hidden, device=device).to(BF16), torch.randn(s.hidden, device=device).to(BF16)
        return _apart(quant_linear.linear(x, weight, bias), quantized.linear(x, weight, bias))

    def plain(tokens: int) -> float:
        torch.manual_seed(0)
        x, weight = (torch.randn(n, s.hidden, device=device).to(BF16) for n in (tokens, s.hidden))
        found = w16a16(x, weight)
        alone = w16a16(x[-1:], weight)
        assert torch.equal(alone, found[-1:]), "a row alone is not what it is among others"
        return _apart(found, F.linear(x.float(), weight.float()))

    for form in FORMS:
        for tokens in s.tokens:
            yield Check(f"{form}, {tokens} tokens", partial(quantised, form, tokens), ROUNDED[BF16])
    for tokens in (s.tokens[0], s.tokens[-1]):
        yield Check(f"w16a16, {tokens} tokens", partial(plain, tokens), ROUNDED[BF16])


def _samples(device: torch.device, s: Sizes) -> Iterator[Check]:
    rows = 12

    def drawn() -> float:
        generator = torch.Generator().manual_seed(0)
        logits = (torch.randn(rows, s.words, generator=generator) * 3).to(device)
        heat = torch.tensor([0.0, 1.0, 0.7] * 4, dtype=torch.float64)
        top_k, top_p = torch.tensor([0, 0, 40, 1] * 3), torch.tensor([1.0, 0.9, 0.5] * 4, dtype=torch.float64)
        min_p, uniform = torch.tensor([0.0, 0.05] * 6).double(), torch.rand(rows, generator=generator).double()
        found = sample(logits, heat, top_k, top_p, min_p, uniform)
        right = Reference().sample(logits, heat, top_k, top_p, min_p, uniform)
        return float((found != right).sum())

    yield Check("sample, 12 rows", drawn, SAME)


def _short(dtype: torch.dtype) -> str:
    return {INT8: "int8", FP8: "fp8", BF16: "bf16", FP16: "fp16"}[dtype]
