"""NativeRunner: a step's batch in, one id a row out, by the CPU path: one native call a step, and no PyTorch.

It makes arrays of facts; what to compute was chosen before, and how is hamdam.kernels.cpu's.
"""
import numpy as np

from hamdam.kernels.cpu.decoder import KV_LAYOUT, Decoder, Floats, Ints, Step, Weights
from hamdam.kernels.cpu.plan import BROKEN_HIDDEN as HIDDEN
from hamdam.kernels.cpu.plan import BROKEN_LOGITS as LOGITS
from hamdam.kernels.cpu.plan import NOTHING

from ..config import BLOCK_SIZE, EngineConfig
from ..loading.checkpoint import Checkpoint
from ..models.rotary import inverse_frequencies
from ..policy.batch import Batch, Broken, Row
from .draws import BROKEN_HIDDEN, BROKEN_LOGITS, held_back, settings
from .kv_cache import blocks_that_fit, context_limit
from .packed_weights import shape_of

KV_BYTES = 2  # of one number of a key or a value: bfloat16


class NativeRunner:
    """Implements policy.batch.Runner."""

    def __init__(
        self, checkpoint: Checkpoint, config: EngineConfig, weights: Weights, *, threads: int, passes: int
    ) -> None:
        """passes: bytes an activation is rounded to, 1 or 2."""
        model = checkpoint.config
        self.max_context = context_limit(config, model)
        self.num_blocks = blocks_that_fit(config, model, KV_BYTES)
        self.vocab_size = model.vocab_size
        self.eos_ids = checkpoint.eos_ids
        self.description = describe(passes, threads)
        self.kv_fingerprint = fingerprint(checkpoint, passes)
        self._frequencies = inverse_frequencies(model)
        self._decoder = Decoder(
            shape_of(model), weights, blocks=self.num_blocks, max_tokens=config.max_batch_tokens, threads=threads,
            passes=passes,
        )

    def run(self, batch: Batch) -> list[int | Broken | None]:
        self._decoder.copy_blocks(batch.copies)
        if not batch.rows:
            return []
        drawn = self._decoder.step(self._step(batch.rows)).tolist()
        means = {NOTHING: None, HIDDEN: BROKEN_HIDDEN, LOGITS: BROKEN_LOGITS}
        return [id if id >= 0 else means[id] for id in drawn]

    def take_kv(self, blocks: list[int], keys: Floats, values: Floats, layer: int) -> None:
        """Fills blocks of one layer with what another runner computed: [blocks, 16, kv_heads, head_dim] each."""
        self._decoder.take_kv(np.asarray(blocks), keys, values, layer)

    def close(self) -> None:
        """Ends its threads."""
        self._decoder.close()

    def _step(self, rows: list[Row]) -> Step:
        starts = np.zeros(len(rows) + 1, np.int32)
        np.cumsum([row.count for row in rows], out=starts[1:])
        owners = np.repeat(np.arange(len(rows), dtype=np.int32), np.diff(starts))
        firsts = np.array([row.start for row in rows], np.int32)
        positions: Ints = firsts[owners] + (np.arange(int(starts[-1]), dtype=np.int32) - starts[owners])
        ids = np.array([id for row in rows for id in row.sequence.ids[row.start : row.start + row.count]], np.int32)
        sampled = [index for index, row in enumerate(rows) if row.sample]
        banned = [held_back(rows[index].sequence, self.vocab_size) for index in sampled]
        ban_starts = np.zeros(len(sampled) + 1, np.int32)
        np.cumsum([len(ids) for ids in banned], out=ban_starts[1:])
        return Step(
            ids=ids,
            owners=owners,
            positions=positions,
            starts=starts,
            tables=_tables(rows),
            turns=self._turns(positions),
            sampled=np.array(sampled, np.int32),
            settings=np.array([settings(rows[index].sequence) for index in sampled], np.float64).reshape(-1, 5),
            banned=np.array([id for ids in banned for id in ids], np.int32),
            ban_starts=ban_starts,
        )

    def _turns(self, positions: Ints) -> Floats:
        angles = positions[:, None].astype(np.float32) * self._frequencies
        turns = np.empty((len(positions), 2 * len(self._frequencies)), np.float32)
        half = len(self._frequencies)
        np.cos(angles, out=turns[:, :half])
        np.sin(angles, out=turns[:, half:])
        return turns


def describe(passes: int, threads: int) -> str:
    return f"int{8 * passes} on cpu, {threads} thread{'s' * (threads > 1)}"


def fingerprint(checkpoint: Checkpoint, passes: int) -> str:
    return f"{checkpoint.fingerprint} int{8 * passes} {KV_LAYOUT}"


def _tables(rows: list[Row]) -> Ints:
    """[rows, blocks of the longest]: what each needs of its table, the rest is not looked at."""
    needed = [-(-(row.start + row.count) // BLOCK_SIZE) for row in rows]
    tables = np.zeros((len(rows), max(needed)), np.int32)
    for line, row, count in zip(tables, rows, needed, strict=True):
        line[:count] = row.sequence.block_table[:count]
    return tables
