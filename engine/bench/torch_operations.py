"""TorchOperations: the kernels of an Ops (kernels/ops.py) at the sizes that a model's steps have. It times nothing."""
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle

import torch
from torch import Tensor

from hamdam.kernels.device import for_device
from hamdam.kernels.ops import Ops, Rows, Weight

from ..config import BLOCK_SIZE
from ..errors import ModelError
from ..models.config import ModelConfig
from .operation import Operation
from .sizes import (
    CHUNK,
    CHUNK_CONTEXT,
    DECODES,
    FEW_AND_MANY,
    OUT_OF_CACHE,
    ROWS,
    SAMPLED,
    SETTINGS,
    SPREAD,
    matrices,
    seen,
)  # fmt: skip

COPIED = 512 << 20  # bytes that the ceiling's copy reads and writes
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}  # others are not PyTorch's to compute in
MULTIPLIED = {"cpu": 2048, "cuda": 8192}  # rows of the ceiling's matrices: small ones keep no GPU busy


def open_torch_operations(shape: ModelConfig, *, device: str, dtype: str, threads: int | None) -> "TorchOperations":
    """What a server would compute with. Raises ModelError."""
    if threads is not None:
        torch.set_num_threads(threads)
    cuda = torch.cuda.is_available()
    if device == "cuda" and not cuda:
        raise ModelError("device cuda was asked for, and PyTorch finds none")
    where = torch.device("cuda" if cuda and device != "cpu" else "cpu")
    usual = torch.bfloat16 if where.type == "cuda" else torch.float32
    return TorchOperations(shape, for_device(where), device=where, dtype=DTYPES.get(dtype, usual))


class TorchOperations:
    """Implements operation.Source."""

    def __init__(self, shape: ModelConfig, ops: Ops, *, device: torch.device, dtype: torch.dtype) -> None:
        self.name = f"{type(ops).__name__}, {str(dtype).removeprefix('torch.')} on {device.type}"
        self.finish = torch.cuda.synchronize if device.type == "cuda" else _nothing
        self._shape, self._ops, self._device, self._dtype = shape, ops, device, dtype
        self._size = dtype.itemsize
        self._kv = 2 * shape.num_kv_heads * shape.head_dim * self._size  # bytes of one token's in one layer
        self._generator = torch.Generator(device).manual_seed(0)
        here, there = (torch.empty(COPIED // 2, dtype=torch.uint8, device=device).zero_() for _ in range(2))
        self.copy = Operation(name="copy", bytes=COPIED, flops=0, call=partial(there.copy_, here))
        rows = MULTIPLIED[device.type]
        one, other = self._random(rows, rows), self._random(rows, rows)
        self.product = Operation(
            name="matrix product", bytes=3 * one.nbytes, flops=2 * rows**3, call=partial(torch.mm, one, other)
        )

    def operations(self) -> Iterator[Operation]:
        yield from self._linears()
        yield from self._elementwise()
        yield from self._stores()
        for batch, context in DECODES:
            yield from self._attention(f"attention, {batch} × {context}", [1] * batch, [context] * batch)
        yield from self._attention(f"attention, {CHUNK} of {CHUNK_CONTEXT}", [CHUNK], [CHUNK_CONTEXT])
        yield from self._samples()

    def _linears(self) -> Iterator[Operation]:
        for name, (outputs, inputs) in matrices(self._shape).items():
            size = outputs * inputs * self._size
            count = max(1, OUT_OF_CACHE // size)
            weights = [self._ops.pack(self._random(outputs, inputs)) for _ in range(count)]
            for rows in ROWS:
                yield Operation(
                    name=f"linear {name}, {rows}",
                    bytes=size + rows * (inputs + outputs) * self._size,
                    flops=2 * rows * outputs * inputs,
                    call=self._linear(self._random(rows, inputs), weights),
                )

    def _linear(self, x: Tensor, weights: list[Weight]) -> Callable[[], object]:
        in_turn = cycle(weights)
        return lambda: self._ops.linear(x, next(in_turn))

    def _elementwise(self) -> Iterator[Operation]:
        shape, ops = self._shape, self._ops
        hidden, wide, heads = shape.hidden_size, shape.intermediate_size, shape.num_heads + shape.num_kv_heads
        weight = self._random(hidden)
        for rows in FEW_AND_MANY:
            x, stream, gate_up = self._random(rows, hidden), self._random(rows, hidden), self._random(rows, 2 * wide)
            turned = self._random(rows, heads, shape.head_dim)
            angle = torch.rand(rows, 1, shape.head_dim, device=self._device)
            yield Operation(
                name=f"rms_norm, {rows}", bytes=4 * x.nbytes, flops=5 * x.numel(),
                call=partial(ops.rms_norm, x, weight, shape.rms_norm_eps, residual=stream),
            )
            yield Operation(
                name=f"rotary, {rows}", bytes=2 * turned.nbytes, flops=3 * turned.numel(),
                call=partial(ops.rotary, turned, angle.cos(), angle.sin()),
            )
            yield Operation(
                name=f"silu_and_mul, {rows}", bytes=gate_up.nbytes * 3 // 2, flops=5 * rows * wide,
                call=partial(ops.silu_and_mul, gate_up),
            )

    def _attention(self, name: str, counts: list[int], contexts: list[int]) -> Iterator[Operation]:
        """Blocks lie in memory as they do after a while: anywhere."""
        shape, ops = self._shape, self._ops
        layers = max(1, min(shape.num_layers, OUT_OF_CACHE // (sum(contexts) * self._kv) + 1))
        rows, cache = self._rows(counts, contexts), self._cache(layers, sum(map(_blocks, contexts)))
        query = self._random(sum(counts), shape.num_heads, shape.head_dim)
        in_turn = cycle(range(layers))
        attention = ops.paged_attention(cache, rows, scale=shape.scale, window=shape.sliding_window)
        yield Operation(
            name=name, bytes=sum(contexts) * self._kv + 2 * query.nbytes,
            flops=4 * seen(counts, contexts) * shape.num_heads * shape.head_dim,
            call=lambda: attention(next(in_turn), query),
        )

    def _stores(self) -> Iterator[Operation]:
        for tokens in FEW_AND_MANY:
            rows = self._rows([1] * tokens, [BLOCK_SIZE] * tokens)
            cache = self._cache(1, tokens)
            key, value = (self._random(tokens, self._shape.num_kv_heads, self._shape.head_dim) for _ in "kv")
            yield Operation(
                name=f"store_kv, {tokens}", bytes=2 * tokens * self._kv, flops=0,
                call=partial(self._ops.store_kv, key, value, cache, 0, rows),
            )

    def _cache(self, layers: int, blocks: int) -> Tensor:
        heads, dim = self._shape.num_kv_heads, self._shape.head_dim
        cache = self._ops.new_kv_cache(layers, blocks, BLOCK_SIZE, heads, dim, dtype=self._dtype, device=self._device)
        return cache.normal_(generator=self._generator)

    def _rows(self, counts: list[int], contexts: list[int]) -> Rows:
        tables = list(map(_blocks, contexts))
        order = torch.split(torch.randperm(sum(tables), generator=torch.Generator().manual_seed(0)), tables)
        padded = torch.nn.utils.rnn.pad_sequence(list(order), batch_first=True)
        places = [
            table[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE
            for table, count, context in zip(order, counts, contexts, strict=True)
            for position in torch.arange(context - count, context)
        ]
        starts = torch.tensor([0, *counts]).cumsum(0)
        given = (starts, torch.tensor(contexts), padded, torch.stack(places))
        return Rows(*(tensor.to(self._device) for tensor in given))

    def _samples(self) -> Iterator[Operation]:
        logits = SPREAD * torch.randn(SAMPLED, self._shape.vocab_size, device=self._device, generator=self._generator)
        for name, heat, top_p in SETTINGS:
            settings = [torch.full((SAMPLED,), x, dtype=torch.float64) for x in (heat, top_p, 0.0, 0.5)]
            settings.insert(1, torch.zeros(SAMPLED, dtype=torch.int64))
            yield Operation(
                name=f"sample {name}, {SAMPLED}", bytes=logits.nbytes, flops=logits.numel(),
                call=partial(self._ops.sample, logits, *settings),
            )

    def _random(self, *shape: int) -> Tensor:
        return torch.randn(shape, device=self._device, generator=self._generator).to(self._dtype)


def _blocks(tokens: int) -> int:
    return -(-tokens // BLOCK_SIZE)


def _nothing() -> None:
    """A CPU's calls are done when they return."""
