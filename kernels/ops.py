"""Ops: the contract between a model and its device: shapes, dtypes, what is written. Not how anything is computed.

Every operation is one call for any mix of prefill and decode: a step's tokens lie one after another in dimension 0,
and `Rows` says which sequence each belongs to. kernels/reference.py is the specification; any other implementation
agrees with it within the rounding of its dtype. Kernels know blocks and rows; what a sequence is they do not know.

Sizes in the shapes below: T tokens of the step, R rows (the sequences in it), H query heads, G KV heads (G divides H),
D head_dim, V vocabulary. Tensors are of the model's dtype, float32 or bfloat16, where nothing else is said; norms,
rotary, softmax and sampling are computed in float32 in either. A KV cache has a dtype of its own.
"""
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

Weight = Any
"""A matrix as `Ops.pack` returned it, into which only `Ops.linear` of the same implementation looks; or a quantised one
(quantized.py), which every implementation takes, some of them slowly."""

Attention = Callable[[int, Tensor], Tensor]
"""(layer, query [T, H, D]) -> [T, H * D]. Made by `Ops.paged_attention` once a step, called once a layer."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Whose tokens a step holds and where their KV lies. All tensors are on the model's device.

    Row r owns tokens `query_starts[r]` up to `query_starts[r + 1]`, at least one. They are the last of its
    `context_lengths[r]` tokens; the ones before them were computed in earlier steps. Position p of the row lies in
    slot `block_tables[r, p // block_size] * block_size + p % block_size`. Unused entries of a table may hold any
    block's number; slots behind a row's context are never read.
    """

    query_starts: Tensor  # [R + 1] int64, from 0 to T
    context_lengths: Tensor  # [R] int64, this step's tokens included
    block_tables: Tensor  # [R, blocks of the longest] int64
    slots: Tensor  # [T] int64, where each token's own KV goes; no two alike


class Ops(Protocol):
    """All that a model asks of a device. An instance belongs to one thread; it may keep buffers between calls."""

    invariant: bool
    """Whether a row's results are the same, to the bit, whatever other rows a step has and however it was cut."""

    quantised: bool
    """Whether a product with a quantised matrix costs no more than with a plain one of the same shape."""

    kv_layout: str
    """Names how a KV cache is arranged in memory. Part of every cache key: two layouts never share a block."""

    def pack(self, weight: Tensor) -> Weight:
        """`weight` [out, in] in the form that `linear` likes best: the tensor itself, or a copy that replaces it."""

    def linear(self, x: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
        """x [T, in] times weight [out, in] transposed, plus bias [out] -> [T, out].

        A plain [out, in] tensor is taken as well as a packed one, since a tied head is not to be stored twice.
        """

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, *, residual: Tensor | None = None) -> Tensor:
        """x / sqrt(mean(x²) + eps) * weight over the last dimension: [..., n] and [n], which may be float32 beside an x
        that is not, -> [..., n].

        With `residual` (shaped like x) it is first increased by x, in place, and the norm is taken of the sum.
        """

    def rotary(self, x: Tensor, cosine: Tensor, sine: Tensor) -> None:
        """Turns x [T, heads, D] in place by cosine and sine, [T, 1, D] float32 as engine/models/rotary.py makes them.

        Dimension i is paired with i + D / 2: (a, b) becomes (a cos - b sin, b cos + a sin). The first half of `sine`
        is negative already, so that x cosine + (x with its halves swapped) sine says the same.
        """

    def silu_and_mul(self, gate_up: Tensor) -> Tensor:
        """[T, 2 n] -> [T, n]: silu of the first half times the second half."""

    def gelu_and_mul(self, gate_up: Tensor) -> Tensor:
        """[T, 2 n] -> [T, n]: GELU, as tanh approximates it, of the first half times the second half."""

    def new_kv_cache(
        self, layers: int, blocks: int, block_size: int, kv_heads: int, head_dim: int,
        *, dtype: torch.dtype, device: torch.device,
    ) -> Tensor:
        """Room for keys and values, not touched yet. Dimension 0 is the layer; the rest only these operations know.

        dtype: float32, float16 or bfloat16, or int8 or float8_e4m3fn with a scale for each token and head, as
        kv_codes.py says. What is stored is rounded to that, and attention reads what it was rounded to.
        """

    def store_kv(self, key: Tensor, value: Tensor, cache: Tensor, layer: int, rows: Rows) -> None:
        """Writes key and value [T, G, D] into slots `rows.slots` of one layer of the cache."""

    def turn_and_store(
        self, query: Tensor, key: Tensor, value: Tensor, cosine: Tensor, sine: Tensor, cache: Tensor, layer: int,
        rows: Rows, *, norms: tuple[Tensor, Tensor, float] | None = None,
    ) -> Tensor:
        """What a layer does with query [T, H, D], key and value [T, G, D] -> the turned query, like query.

        With `norms`, weights [D] of queries and of keys and an eps, `rms_norm` of each head of them; then `rotary` of
        both; then `store_kv`. Query and key may hold anything afterwards.
        """

    def copy_blocks(self, cache: Tensor, pairs: Sequence[tuple[int, int]]) -> None:
        """Copies block a onto block b in all layers, for each (a, b) in order: one may read what another wrote."""

    def paged_attention(
        self, cache: Tensor, rows: Rows, *, scale: float, window: int | None = None, soft_cap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Attention:
        """Causal attention of this step's queries over their own rows' keys and values, this step's included.

        Called once a step, for what all layers share. Query position p sees keys 0 … p, or with `window` the last
        `window` of them; query head h reads KV head h * G // H. A layer's keys must be stored before its Attention is
        called, which writes nothing but its result. No row reads a slot of another: not-a-number stays where it arose.
        With `soft_cap` a score, scale included, becomes cap * tanh(score / cap). sinks [layers, H]: for each head the
        logit of a key that every query sees and whose value is 0 (arXiv:2309.17453).
        """

    def sample(
        self, logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, uniform: Tensor
    ) -> Tensor:
        """One id a row of logits [R, V], any float dtype: no NaN, no +inf; -inf is never taken, one at least is finite.

        temperature 0 takes the largest logit, the lowest id where several are largest, and ignores the other settings.
        Else (0.001 and above) the probabilities are softmax(logits / temperature), and a token may be taken if it is
          among the `top_k` largest (0: all; of equal logits the lower id is the larger), and
          among the fewest largest that hold `top_p` of the mass that top_k left (the first always is), and
          at least `min_p` times as probable as the most probable.
        Of these, in the order of their ids, it takes the first at which the sum of probabilities passes `uniform` times
        their mass. A row's result depends on its own numbers alone.
        temperature, top_p, min_p and uniform, in [0, 1): [R] float64; top_k: [R] int64 -> [R] int64. All lie where the
        logits do, or on the CPU.
        """
