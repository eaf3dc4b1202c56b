"""NativeRunner: a step's batch in, one id a row out, by the CPU path: one native call a step, and no PyTorch.

It makes arrays of facts; what to compute was chosen before, and how is hamdam.kernels.cpu's.
"""
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate

import numpy as np

from hamdam.kernels.cpu.decoder import KV_LAYOUT, Decoder, Weights
from hamdam.kernels.cpu.facts import Floats, Ints, Step
from hamdam.kernels.cpu.plan import BROKEN_HIDDEN as HIDDEN
from hamdam.kernels.cpu.plan import BROKEN_LOGITS as LOGITS
from hamdam.kernels.cpu.plan import NOTHING
from hamdam.kernels.cpu.processor import KIND

from ..config import BLOCK_SIZE, EngineConfig
from ..loading.checkpoint import Checkpoint
from ..models.rotary import rotary_digest, rotary_tables
from ..policy.batch import Batch, Result, Row, Scored
from .draws import BROKEN_HIDDEN, BROKEN_LOGITS, settings
from .edits import NONE
from .kv_cache import NATIVE, blocks_that_fit, context_limit, memory_on_cpu
from .logprobs import logprobs
from .masks import Limits, limits
from .packed_weights import shape_of
from .quality import EXACT_ABOVE

APART = 16  # blocks: enough to tell conversations apart that share less than a split of their keys


class NativeRunner:
    """Implements policy.batch.Runner."""

    def __init__(
        self, checkpoint: Checkpoint, config: EngineConfig, weights: Weights, *, threads: int, dtype: str
    ) -> None:
        """dtype: one of EXACT_ABOVE."""
        model = checkpoint.config
        self.max_context = context_limit(config, model)
        self.num_blocks = blocks_that_fit(memory_on_cpu(config), model, NATIVE)
        self.vocab_size = model.vocab_size
        self.eos_ids = checkpoint.eos_ids
        self.description = describe(dtype, threads, checkpoint.rounded())
        self.kv_fingerprint = fingerprint(checkpoint, config, dtype)
        [self._rotary] = rotary_tables(model, self.max_context).values()  # all layers alike: runners.no_native
        self.decoder = Decoder(
            shape_of(model), weights, blocks=self.num_blocks, max_tokens=config.max_batch_tokens, threads=threads,
            exact_above=EXACT_ABOVE[dtype],
        )

    def run(self, batch: Batch) -> list[Result]:
        self.decoder.copy_blocks(batch.copies)
        if not batch.rows:
            return []
        rows = batch.rows
        order = _side_by_side(rows)
        sampled = [index for index in order if rows[index].sample]
        limited = limits([rows[index].sequence for index in sampled], self.vocab_size)
        step = self._step([rows[index] for index in order], limited)
        drawn = self.decoder.step(step).tolist()
        means = {NOTHING: None, HIDDEN: BROKEN_HIDDEN, LOGITS: BROKEN_LOGITS}
        results: list[Result] = [None] * len(rows)
        for index, id in zip(order, drawn, strict=True):
            results[index] = id if id >= 0 else means[id]
        kept = self.decoder.kept_logits()
        for row, place in zip(step.sampled.tolist(), step.kept.tolist(), strict=True):
            index, id = order[row], drawn[row]
            if place >= 0 and id >= 0:
                results[index] = Scored(id, logprobs(kept[place], id, rows[index].sequence.params.top_logprobs))
        for sample, broken in limited.broken.items():
            results[sampled[sample]] = broken
        return results

    def take_kv(self, blocks: list[int], keys: Floats, values: Floats, layer: int) -> None:
        """Fills blocks of one layer with what another runner computed: [blocks, 16, kv_heads, head_dim] each."""
        self.decoder.take_kv(np.asarray(blocks), keys, values, layer)

    def close(self) -> None:
        """Ends its threads."""
        self.decoder.close()

    def _step(self, rows: list[Row], limited: Limits) -> Step:
        """Lists first: of a few numbers each, they take less time than arrays. limited: of the rows that sample."""
        spans = [range(row.start, row.start + row.count) for row in rows]
        positions = ints(position for span in spans for position in span)
        sampled = [index for index, row in enumerate(rows) if row.sample]
        changes = limited.edits
        asking = [rows[index].sequence.params.logprobs for index in sampled]
        return Step(
            ids=ints(id for row in rows for id in row.sequence.ids[row.start : row.start + row.count]),
            owners=ints(index for index, row in enumerate(rows) for _ in range(row.count)),
            positions=positions,
            starts=ints(accumulate((row.count for row in rows), initial=0)),
            tables=_tables(rows),
            turns=self._turns(positions),
            sampled=ints(sampled),
            settings=np.array([settings(rows[index].sequence) for index in sampled], np.float64).reshape(-1, 5),
            masks=limited.words,
            mask_of=limited.of,
            edits=np.concatenate([NONE.ids, *(change.ids for change in changes)]),
            divisors=np.concatenate([NONE.divisors, *(change.divisors for change in changes)]),
            added=np.concatenate([NONE.added, *(change.added for change in changes)]),
            edit_starts=ints(accumulate((len(change.ids) for change in changes), initial=0)),
            kept=ints(sum(asking[:place]) if asks else -1 for place, asks in enumerate(asking)),
        )

    def _turns(self, positions: Ints) -> Floats:
        frequencies, sizes = self._rotary.frequencies, self._rotary.sizes
        angles = positions[:, None].astype(np.float32) * frequencies
        turns = np.empty((len(positions), 2, len(frequencies)), np.float32)
        np.cos(angles, out=turns[:, 0])
        np.sin(angles, out=turns[:, 1])
        turns *= sizes
        return turns.reshape(len(positions), -1)


def ints(numbers: Iterable[int]) -> Ints:
    return np.array(list(numbers), np.int32)


def describe(dtype: str, threads: int, rounded: Sequence[str] = ()) -> str:
    """rounded: formats of weights that were made 8 bits of other ones."""
    slower = f" ({KIND})" if KIND else ""
    loss = f", {' and '.join(rounded)} rounded to 8 bits" if rounded else ""
    return f"{dtype} on cpu{slower}, {threads} thread{'s' * (threads > 1)}{loss}"


def fingerprint(checkpoint: Checkpoint, config: EngineConfig, dtype: str) -> str:
    model = checkpoint.config
    return f"{checkpoint.fingerprint} {dtype} {KV_LAYOUT} {rotary_digest(model, context_limit(config, model))}"


def _side_by_side(rows: list[Row]) -> list[int]:
    """The order in which rows are computed. Those that decode are side by side, and those that begin with the same
    blocks, whose keys are then read once. All rows of one sequence (prompt_rows.py) stay together and as they were: the
    last token of such a run clears the slot behind it, which must not be one that the same step writes."""
    tokens = Counter[int]()
    for row in rows:
        tokens[id(row.sequence.block_table)] += row.count

    def place(index: int) -> tuple[bool, list[int]]:
        table = rows[index].sequence.block_table
        return tokens[id(table)] > 1, table[::APART]

    return sorted(range(len(rows)), key=place)


def _tables(rows: list[Row]) -> Ints:
    """[rows, blocks of the longest]: what each needs of its table, the rest is not looked at."""
    needed = [-(-(row.start + row.count) // BLOCK_SIZE) for row in rows]
    tables = np.zeros((len(rows), max(needed)), np.int32)
    for line, row, count in zip(tables, rows, needed, strict=True):
        line[:count] = row.sequence.block_table[:count]
    return tables
