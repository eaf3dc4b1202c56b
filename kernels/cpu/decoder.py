"""Decoder: a model's weights and its KV cache, and a step of them as one native call. No sequence, no file.

It is the CPU's whole answer to what engine/models/transformer.py says in PyTorch: the same model, other arithmetic
(weights of 4 or 8 bits as they are, activations rounded to whole numbers, KV in bfloat16).
"""
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from . import plan as p
from .attention import SCRATCH as ATTENTION_SCRATCH
from .attention import SPLIT
from .facts import Floats, Ints, Shape, Step
from .helping import few_bytes, said_bytes
from .packing import Packed, aligned
from .rows import row_bytes
from .step import PHASES, padded, run_step
from .team import BUSY, INSIDE, Team, await_empty
from .units import UNIT_BYTES

PAGE = 4096  # bytes; also a head's part of a block, where dim is 64
BLOCK = 16  # tokens of a KV block: the width of a register
Places = NDArray[np.int64]
KV_LAYOUT = "cpu: block, layer, head, key | value; bfloat16 in pairs"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """qkv: the rows of q over those of k over those of v. gate_up: 16 rows of each in turn (packing.put)."""

    attention_norm: Floats
    qkv: Packed
    qkv_bias: Floats | None
    query_norm: Floats | None
    key_norm: Floats | None
    output: Packed
    output_bias: Floats | None
    mlp_norm: Floats
    gate_up: Packed
    down: Packed


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """head may be the embedding itself."""

    embedding: Packed
    layers: Sequence[LayerWeights]
    norm: Floats
    head: Packed


class Decoder:
    """Belongs to one thread, which takes part in the steps; `threads` - 1 more are its own."""

    def __init__(
        self, shape: Shape, weights: Weights, *, blocks: int, max_tokens: int, threads: int, exact_above: float
    ) -> None:
        """exact_above: which activations are rounded to 16 bits and not to 8 (rows.quantise)."""
        self.shape, self._weights, self._exact_above = shape, weights, exact_above
        self._threads = threads
        head_bytes = 4 * BLOCK * shape.dim  # of one block of one layer
        # All layers of a block side by side: what is not yet in use takes no memory, huge pages or not.
        size = shape.layers * shape.kv_heads * head_bytes
        room = _untouched(blocks * size).reshape(blocks, shape.layers, shape.kv_heads, head_bytes)
        self.cache = room.transpose(1, 2, 0, 3)
        self._plan = np.zeros(p.PLACES, np.int64)
        self._layers = np.zeros((shape.layers, p.LAYER_PLACES), np.int64)
        self._products = np.zeros((shape.layers * p.LAYER_PRODUCTS + 2, p.PRODUCT_PLACES), np.int64)
        self._kept: dict[int, NDArray[np.generic]] = {}  # what the plan's addresses point to
        self._describe()
        self.clocks = np.zeros(len(p.PHASES), np.int64)  # cycles spent so far, by kind of phase
        self._point(p.CLOCKS, self.clocks)
        self._point(p.SAID, aligned(len(self._products) * said_bytes(threads)))
        self._kept[p.SAID].fill(0)
        self._largest: tuple[int, ...] = (0, 0, 0)  # tokens, splits and samples there is room for
        self._room(max_tokens, 1, 1)
        self._order = 0
        self._given: Step | None = None
        plan, layers, products = self._plan, self._layers, self._products
        looked_at = self._kept, weights, room  # stays, also where nobody has the decoder any more and nobody closed it

        def follow(board: int, threads: int, which: int, _stays: object = looked_at) -> None:
            run_step(plan, layers, products, board, threads, which, 0)

        self._team = Team(threads, PHASES * shape.layers + 4, follow)

    def step(self, step: Step) -> Ints:
        """[R]: the id that was drawn, NOTHING, BROKEN_HIDDEN or BROKEN_LOGITS (plan.py). Writes the tokens' KV."""
        await_empty(self._team.board, INSIDE)  # what somebody may still look at is neither changed nor given away
        self._given = step
        kept = int(step.kept.max(initial=-1)) + 1
        asked = len(step.ids), int(step.positions.max()) // SPLIT + 1, len(step.sampled) + kept
        if any(size > room for size, room in zip(asked, self._largest, strict=True)):
            await_empty(self._team.board, BUSY)
            self._room(*asked)
        results = np.empty(len(step.starts) - 1, np.int32)
        plan = self._plan
        plan[p.TOKENS], plan[p.ROWS] = len(step.ids), len(results)
        plan[p.SAMPLES], plan[p.TABLE_WIDTH] = len(step.sampled), step.tables.shape[1]
        for place, array in (
            (p.IDS, step.ids), (p.OWNERS, step.owners), (p.POSITIONS, step.positions), (p.STARTS, step.starts),
            (p.TABLES, step.tables), (p.TURNS, step.turns), (p.SAMPLED, step.sampled), (p.SETTINGS, step.settings),
            (p.MASKS, step.masks), (p.MASK_OF, step.mask_of),
            (p.EDITS, step.edits), (p.DIVISORS, step.divisors), (p.ADDED, step.added),
            (p.EDIT_STARTS, step.edit_starts), (p.KEPT, step.kept), (p.RESULTS, results),
        ):
            plan[place] = array.__array_interface__["data"][0]
        plan[p.MASK_BYTES] = step.masks.strides[0]
        plan[p.NUMBER] += 1
        self._order = self._order % 0x3FFFFFFF + 1
        run_step(plan, self._layers, self._products, self._team.board, self._threads, 0, self._order)
        return results

    def logits(self, samples: int) -> Floats:
        """[S, vocabulary]: what the last step drew from, valid until the next one, edits included."""
        return self._logits(0, samples)

    def kept_logits(self) -> Floats:
        """[kept, vocabulary]: those that the last step was to keep, before edits, valid until the next one."""
        if self._given is None:
            return self._logits(0, 0)
        return self._logits(len(self._given.sampled), int(self._given.kept.max(initial=-1)) + 1)

    def _logits(self, first: int, count: int) -> Floats:
        room, width = self._kept[p.LOGITS].view(np.float32), padded(self.shape.vocabulary) // 4
        return room[first * width : (first + count) * width].reshape(count, width)[:, : self.shape.vocabulary]

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copies block a onto block b in all layers, for each (a, b) in order."""
        for source, target in pairs:
            self.cache[:, :, target] = self.cache[:, :, source]

    def take_kv(self, blocks: NDArray[np.intp], keys: Floats, values: Floats, layer: int) -> None:
        """Writes whole blocks of one layer: keys and values [blocks, 16, kv_heads, dim]."""
        half = 2 * BLOCK * self.shape.dim
        own = keys.reshape(len(blocks), BLOCK, self.shape.kv_heads, -1, 2).transpose(2, 0, 3, 1, 4)
        self.cache[layer][:, blocks, :half] = _bf16(own).view(np.uint8).reshape(own.shape[0], len(blocks), half)
        own = values.reshape(len(blocks), BLOCK // 2, 2, self.shape.kv_heads, -1).transpose(3, 0, 1, 4, 2)
        self.cache[layer][:, blocks, half:] = _bf16(own).view(np.uint8).reshape(own.shape[0], len(blocks), half)

    @property
    def plans(self) -> tuple[Places, Places, Places, int]:
        """The plan, the layers', the products' and the board, as the last step left them, for who measures parts of it.

        They point to that step's facts and results, which are its caller's to keep.
        """
        return self._plan, self._layers, self._products, self._team.board

    def close(self) -> None:
        """Ends the threads. Idempotent."""
        self._team.close()

    def _describe(self) -> None:
        shape, plan = self.shape, self._plan
        weights = self._weights
        plan[[p.LAYERS, p.HIDDEN, p.HEADS, p.KV_HEADS, p.DIM, p.WIDE, p.VOCABULARY, p.WINDOW]] = (
            shape.layers, shape.hidden, shape.heads, shape.kv_heads, shape.dim, shape.wide, shape.vocabulary,
            shape.window,
        )
        plan[[p.LAYER_BYTES, p.HEAD_BYTES, p.BLOCK_BYTES]] = self.cache.strides[:3]
        plan[p.CACHE] = self.cache.ctypes.data
        self._point(p.FACTORS, np.array([shape.epsilon, shape.dim**-0.5, self._exact_above]))
        plan[p.EMBEDDING], plan[p.EMBEDDING_BITS] = _address(weights.embedding.data), weights.embedding.bits
        plan[p.NORM] = _address(weights.norm)
        query, qkv = shape.heads * shape.dim, (shape.heads + 2 * shape.kv_heads) * shape.dim
        products: list[tuple[Packed, int, int, Floats | None]] = []
        for row, layer in zip(self._layers, weights.layers, strict=True):
            vectors = layer.attention_norm, layer.query_norm, layer.key_norm, layer.mlp_norm
            row[[p.ATTENTION_NORM, p.QUERY_NORM, p.KEY_NORM, p.MLP_NORM]] = [_address(vector) for vector in vectors]
            products += [  # in the order of plan.TO_QKV and what stands behind it
                (layer.qkv, qkv, shape.hidden, layer.qkv_bias),
                (layer.output, shape.hidden, query, layer.output_bias),
                (layer.gate_up, 2 * shape.wide, shape.hidden, None),
                (layer.down, shape.hidden, shape.wide, None),
            ]
        products.append((weights.head, shape.vocabulary, shape.hidden, None))
        for row, (matrix, outputs, inputs, bias) in zip(self._products, [*products, products[0]], strict=True):
            row[[p.MATRIX, p.BITS, p.OUTPUTS, p.INPUTS, p.BIAS]] = (
                _address(matrix.data), matrix.bits, outputs, inputs, _address(bias),
            )

    def _room(self, tokens: int, splits: int, samples: int) -> None:
        """Makes every buffer large enough; they only grow."""
        tokens, splits, samples = largest = tuple(map(max, (tokens, splits, samples), self._largest))
        shape = self.shape
        heads, query = shape.heads, shape.heads * shape.dim
        widest = max(shape.hidden, query)
        vocabulary = padded(shape.vocabulary)
        outputs = max(shape.vocabulary, 2 * shape.wide, query + 2 * shape.kv_heads * shape.dim)
        own = max(ATTENTION_SCRATCH + 256 + 24 * shape.dim + 48, few_bytes(outputs, self._threads), padded(widest))
        own = -(-own // 64) * 64
        for place, size in (
            (p.STREAM, tokens * padded(shape.hidden)),
            (p.BYTES, max(tokens, samples, self._threads + 1) * row_bytes(widest)),
            (p.WIDE_BYTES, max(tokens, self._threads) * row_bytes(shape.wide)),
            (p.QKV, tokens * padded((heads + 2 * shape.kv_heads) * shape.dim)),
            (p.QUERY, tokens * 2 * query),
            (p.ATTENDED, splits * tokens * 4 * query),
            (p.STATES, splits * tokens * 8 * heads),
            (p.UNIT, splits * tokens * UNIT_BYTES),
            (p.GATED, tokens * padded(shape.wide)),
            (p.LOGITS, samples * vocabulary),
            (p.PICKING, self._threads * 2 * vocabulary),
            (p.SCRATCH, self._threads * own),
        ):
            if place not in self._kept or self._kept[place].nbytes < size:
                self._point(place, aligned(size))
        self._plan[p.SCRATCH_BYTES] = own
        self._largest = largest

    def _point(self, place: int, array: NDArray[np.generic]) -> None:
        self._kept[place] = array
        self._plan[place] = array.ctypes.data


def _address(array: NDArray[np.generic] | None) -> int:
    """0 for none."""
    return 0 if array is None else array.ctypes.data


def _untouched(size: int) -> NDArray[np.uint8]:
    """Bytes that take no memory before they are written, from the beginning of a page on; NumPy asks for huge ones."""
    room = np.empty(size + PAGE, np.uint8)
    start = -room.ctypes.data % PAGE
    return room[start : start + size]


def _bf16(x: Floats) -> NDArray[np.uint16]:
    """The upper halves of float32, rounded to the nearest even one; not-a-number stays, whatever its bits."""
    bits = np.ascontiguousarray(x).view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    near = (bits + (np.uint32(0x7FFF) + odd)) >> np.uint32(16)
    return np.where(np.isnan(x), np.uint32(0x7FC0), near).astype(np.uint16)
