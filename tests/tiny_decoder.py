"""TinyDecoder: small random models for the CPU path, and the same in float64 for whole sequences. Not a test."""
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from packed_numbers import Array, bf16, from_bf16, joined, packed, random_blocks, side_by_side, weights_of

from hamdam.kernels.cpu.decoder import BLOCK, Decoder, LayerWeights, Weights
from hamdam.kernels.cpu.facts import Shape, Step
from hamdam.kernels.cpu.packing import Blocks

THETA = 100.0
GREEDY = (0.0, 0, 1.0, 0.0, 0.0)
POISON = 0x7FC0  # not-a-number in bfloat16
UNUSED = 0
BLOCKS = 90


@dataclass(frozen=True)
class Model:
    shape: Shape
    weights: Weights
    embedding: Array  # float64, as all below
    head: Array
    layers: list[dict[str, Array]]


def random_model(
    seed: int = 0, *, layers: int = 2, hidden: int = 64, heads: int = 4, kv_heads: int = 2, dim: int = 16,
    wide: int = 96, vocabulary: int = 70, window: int = 0, bits: int = 8, tied: bool = False, biased: bool = False,
    normed_heads: bool = False, epsilon: float = 1e-5,
) -> Model:
    random = np.random.default_rng(seed)
    query, key = heads * dim, kv_heads * dim

    def blocks(outputs: int, inputs: int) -> Blocks:
        made = random_blocks(random, outputs, inputs, bits)
        made.scales[:] *= np.float16((1.2 if bits == 8 else 19) / np.sqrt(inputs))  # a product is about as large as x
        if made.minima is not None:  # around 0
            made.minima[:] = made.scales * np.float16(-7.5)
        return made

    def vector(n: int, *, around: float) -> NDArray[np.float32]:
        """With room for a whole panel, as products read biases."""
        made = np.zeros(-(-n // 32) * 32, np.float32)
        made[:n] = around + random.standard_normal(n) * 0.2
        return made

    own_layers, wide_layers = [], []
    for _ in range(layers):
        gate, up, down = blocks(wide, hidden), blocks(wide, hidden), blocks(hidden, wide)
        qkv, output = [blocks(n, hidden) for n in (query, key, key)], blocks(hidden, query)
        own = LayerWeights(
            attention_norm=vector(hidden, around=1),
            qkv=packed(joined(qkv), hidden),
            qkv_bias=vector(query + 2 * key, around=0) if biased else None,
            query_norm=vector(dim, around=1) if normed_heads else None,
            key_norm=vector(dim, around=1) if normed_heads else None,
            output=packed(output, query),
            output_bias=vector(hidden, around=0) if biased else None,
            mlp_norm=vector(hidden, around=1),
            gate_up=packed(side_by_side(gate, up), hidden),
            down=packed(down, wide),
        )
        own_layers.append(own)
        wide_layers.append({
            "qkv": np.concatenate([weights_of(part, hidden) for part in qkv]), "output": weights_of(output, query),
            "gate": weights_of(gate, hidden), "up": weights_of(up, hidden), "down": weights_of(down, wide),
        })
    embedding = blocks(vocabulary, hidden)
    embedding.scales[:] *= np.float16(4)
    if embedding.minima is not None:
        embedding.minima[:] *= np.float16(4)
    head = embedding if tied else blocks(vocabulary, hidden)
    table = packed(embedding, hidden)
    return Model(
        Shape(layers=layers, hidden=hidden, heads=heads, kv_heads=kv_heads, dim=dim, wide=wide, vocabulary=vocabulary,
              epsilon=epsilon, window=window),
        Weights(embedding=table, layers=own_layers, norm=vector(hidden, around=1),
                head=table if tied else packed(head, hidden)),
        weights_of(embedding, hidden), weights_of(head, hidden), wide_layers,
    )


def with_broken_row(model: Model, id: int, bits: int = 0x7E00) -> Model:
    """The embedding of `id` is no number: float16 of these bits."""
    table = model.weights.embedding
    data = table.data.copy()
    groups = -(-table.inputs // 32)
    size = data.size // groups // -(-table.outputs // 32)
    at = size - (64 if table.bits == 8 else 128) + 2 * (id % 32)
    data.reshape(-1, groups, size)[id // 32, :, at : at + 2].view(np.uint16)[:] = bits
    return replace(model, weights=replace(model.weights, embedding=replace(table, data=data)))


@dataclass
class Row:
    """A sequence and the blocks it owns; `take` says what of it is computed next."""

    ids: list[int]
    blocks: list[int]
    done: int = 0
    settings: tuple[float, int, float, float, float] = GREEDY
    banned: Sequence[int] = ()
    kept: int = -1  # as facts.Step has it


@dataclass
class Table:
    """Hands out blocks in random order, but not UNUSED: spare entries of a table hold it, and nobody writes it."""

    free: list[int] = field(default_factory=list)

    def row(self, ids: Sequence[int], **more: object) -> Row:
        return Row(list(ids), [self.free.pop() for _ in range(-(-len(ids) // BLOCK))], **more)  # type: ignore[arg-type]


def shuffled(seed: int, blocks: int) -> Table:
    return Table((1 + np.random.default_rng(seed).permutation(blocks - 1)).tolist())


def opened(model: Model, *, blocks: int, threads: int = 1, exact_above: float = 0.0, max_tokens: int = 4) -> Decoder:
    """A decoder whose cache is poisoned all over."""
    decoder = Decoder(
        model.shape, model.weights, blocks=blocks, max_tokens=max_tokens, threads=threads, exact_above=exact_above
    )
    decoder.cache.view(np.uint16)[:] = POISON
    return decoder


def step_of(shape: Shape, rows: Sequence[tuple[Row, int]], *, quiet: Sequence[int] = ()) -> Step:
    """The next so many tokens of each row, which are then done. All rows sample but those whose numbers are `quiet`."""
    counts = np.array([count for _, count in rows])
    starts = np.zeros(len(rows) + 1, np.int32)
    starts[1:] = counts.cumsum()
    positions = np.concatenate([np.arange(row.done, row.done + count) for row, count in rows]).astype(np.int32)
    needed = [-(-(row.done + count) // BLOCK) for row, count in rows]
    tables = np.full((len(rows), max(needed) + 1), UNUSED, np.int32)
    for line, (row, _), own in zip(tables, rows, needed, strict=True):
        line[:own] = row.blocks[:own]
    sampled = [number for number in range(len(rows)) if number not in quiet]
    banned = [list(rows[number][0].banned) for number in sampled]
    edit_starts = np.zeros(len(sampled) + 1, np.int32)
    edit_starts[1:] = np.cumsum([len(ids) for ids in banned])
    ids = [id for row, count in rows for id in row.ids[row.done : row.done + count]]
    for row, count in rows:
        row.done += count
    return Step(
        ids=np.array(ids, np.int32), owners=np.repeat(np.arange(len(rows), dtype=np.int32), counts),
        positions=positions, starts=starts, tables=tables, turns=turns_of(positions, shape.dim),
        sampled=np.array(sampled, np.int32),
        settings=np.array([rows[number][0].settings for number in sampled], np.float64).reshape(-1, 5),
        masks=np.zeros((0, 0), np.uint32), mask_of=np.full(len(sampled), -1, np.int32),
        edits=np.array([id for ids in banned for id in ids], np.int32), edit_starts=edit_starts,
        divisors=np.ones(edit_starts[-1], np.float32), added=np.full(edit_starts[-1], -np.inf, np.float32),
        kept=np.array([rows[number][0].kept for number in sampled], np.int32),
    )


def turns_of(positions: NDArray[np.int32], dim: int) -> NDArray[np.float32]:
    angles = positions[:, None].astype(np.float32) * np.float32(THETA) ** -(np.arange(0, dim, 2, np.float32) / dim)
    return np.concatenate((np.cos(angles), np.sin(angles)), 1).astype(np.float32)


def buffer(decoder: Decoder, place: int, dtype: type[np.generic], *shape: int) -> Array:
    """What the last step left in one of its buffers, copied."""
    count = int(np.prod(shape))
    return decoder._kept[place].view(dtype)[:count].reshape(shape).copy()


def logits_of(decoder: Decoder, samples: int) -> NDArray[np.float32]:
    """[samples, vocabulary] of the last step, to keep; banned ids are -inf."""
    return decoder.logits(samples).copy()


def kv_of(decoder: Decoder, layer: int, row: Row) -> tuple[Array, Array]:
    """Keys and values of what is done of a row, [tokens, kv_heads, dim] float32, read by their layout."""
    shape, count = decoder.shape, row.done
    blocks = decoder.cache[layer][:, row.blocks[: -(-count // BLOCK)]].view(np.uint16)
    half = BLOCK * shape.dim
    keys = blocks[..., :half].reshape(*blocks.shape[:2], shape.dim // 2, BLOCK, 2).transpose(1, 3, 0, 2, 4)
    values = blocks[..., half:].reshape(*blocks.shape[:2], BLOCK // 2, shape.dim, 2).transpose(1, 2, 4, 0, 3)
    return tuple(from_bf16(x.reshape(-1, shape.kv_heads, shape.dim)[:count]) for x in (keys, values))  # type: ignore


@contextmanager
def decoding(model: Model, **settings: Any) -> Iterator[Decoder]:
    decoder = opened(model, **{"blocks": BLOCKS, **settings})
    try:
        yield decoder
    finally:
        decoder.close()


def random_ids(seed: int, *counts: int, below: int = 70) -> list[list[int]]:
    random = np.random.default_rng(seed)
    return [random.integers(0, below, count).tolist() for count in counts]


def traces(decoder: Decoder, row: Row) -> bytes:
    """All that a row has left in the cache, bit for bit."""
    return b"".join(x.tobytes() for layer in range(decoder.shape.layers) for x in kv_of(decoder, layer, row))


def alone(model: Model, ids: Sequence[int], **settings: Any) -> tuple[bytes, bytes]:
    """A sequence in one step and with nobody: the bits of its last logits and of its keys and values."""
    with decoding(model, **settings) as decoder:
        row = shuffled(0, BLOCKS).row(ids)
        decoder.step(step_of(model.shape, [(row, len(ids))]))
        return logits_of(decoder, 1).tobytes(), traces(decoder, row)


def right_logits(model: Model, ids: Sequence[int]) -> Array:
    """[tokens, vocabulary] of a whole sequence, in float64 but for the rounding of queries, keys and values."""
    shape = model.shape
    positions = np.arange(len(ids), dtype=np.int32)
    turns = turns_of(positions, shape.dim).astype(np.float64)[:, None]
    cosine, sine = np.split(turns, 2, axis=-1)
    group = shape.heads // shape.kv_heads
    seen = positions[:, None] >= positions
    if shape.window:
        seen &= positions[:, None] < positions + shape.window

    def norm(x: Array, weight: NDArray[np.float32] | None) -> Array:
        if weight is None:
            return x
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + shape.epsilon) * weight[: x.shape[-1]].astype(np.float64)

    def biased(x: Array, bias: NDArray[np.float32] | None) -> Array:
        return x if bias is None else x + bias[: x.shape[-1]].astype(np.float64)

    def turned(x: Array) -> Array:
        a, b = np.split(x, 2, axis=-1)
        return np.concatenate((a * cosine - b * sine, b * cosine + a * sine), -1)

    stream = model.embedding[list(ids)]
    for own, wide in zip(model.weights.layers, model.layers, strict=True):
        qkv = biased(norm(stream, own.attention_norm) @ wide["qkv"].T, own.qkv_bias)
        heads = qkv.reshape(len(ids), -1, shape.dim)
        query, key, value = np.split(heads, [shape.heads, shape.heads + shape.kv_heads], axis=1)
        query = bf16(turned(norm(query, own.query_norm)) * shape.dim**-0.5)
        key, value = bf16(turned(norm(key, own.key_norm))), bf16(value)
        key, value = key.repeat(group, 1), value.repeat(group, 1)
        scores = np.where(seen, np.einsum("qhd,khd->hqk", query, key), -np.inf)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        attended = np.einsum("hqk,khd->qhd", shares, value).reshape(len(ids), -1)
        stream = stream + biased(attended @ wide["output"].T, own.output_bias)
        x = norm(stream, own.mlp_norm)
        gate = x @ wide["gate"].T
        stream = stream + (gate / (1 + np.exp(-gate)) * (x @ wide["up"].T)) @ wide["down"].T
    return norm(stream, model.weights.norm) @ model.head.T
