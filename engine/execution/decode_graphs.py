"""DecodeGraphs: what a decode step launches, recorded once and replayed, for a few padded sizes. It computes nothing.

To launch the hundreds of small kernels of a step takes the CPU longer than a GPU needs for them; a recorded graph is
one launch. It reads its step where StepInputs puts steps of its size, so it is replayed for any rows of that size.
"""
import logging
from collections.abc import Callable
from collections.abc import Sequence as Ordered
from dataclasses import dataclass

import torch
from torch import Tensor

from ..policy.batch import Row
from .step_inputs import Drawn, Shape, Step, StepInputs, blocks_of

log = logging.getLogger("hamdam.engine")
NARROWEST = 64  # blocks of a graph's tables; the others are four times as wide as the one before


@dataclass(frozen=True, slots=True)
class Scores:
    """What a step leaves of its rows. On the device, and perhaps not computed yet."""

    hidden: Tensor  # [rows or more, hidden] of each row's last token
    logits: Tensor  # [rows that sample or more, vocabulary] float32


Compute = Callable[[Step, Tensor | None], Scores]
"""(step, where the logits go, or None) -> scores. It launches and does not wait, nor read any number of the step."""

Record = Callable[[Callable[[], Scores]], tuple[Callable[[], None], Scores]]
"""(work) -> (a function that does it again, and where it leaves what `work` returned)."""


class DecodeGraphs:
    def __init__(
        self, compute: Compute, inputs: StepInputs, logits: Tensor, *, blocks: int, padding_block: int, record: Record
    ) -> None:
        """logits [rows of the largest step, vocabulary] float32: of all graphs, since one alone runs at a time.
        blocks: of the longest table. padding_block: as StepInputs.take has it."""
        self._compute, self._inputs, self._logits, self._record = compute, inputs, logits, record
        self._padding_block = padding_block
        self._rows = sizes(1, len(logits), times=2)
        self._blocks = sizes(NARROWEST, blocks, times=4)
        self._graphs: dict[Shape, tuple[Callable[[], None], Scores]] = {}
        self.broken: str | None = None

    def prepare(self) -> None:
        """Records every number of rows, with the narrowest tables; others are recorded when they are met. The largest
        first: the others find room in its memory."""
        for rows in reversed(self._rows):
            self._graph(Shape(rows, rows, rows, self._blocks[0]), [])

    def replay(self, rows: Ordered[Row], drawn: Drawn | None = None) -> Scores | None:
        """None where this is no decode step, or cannot be done: then it is to be computed launch by launch."""
        if self.broken or len(rows) > self._rows[-1] or any(row.count > 1 for row in rows):
            return None
        longest = blocks_of(max(row.start for row in rows) + 1)
        size, width = _holding(self._rows, len(rows)), _holding(self._blocks, longest)
        graph = self._graph(Shape(size, size, size, width), rows, drawn)
        if graph is None:
            return None
        again, scores = graph
        again()
        return scores

    def _graph(
        self, shape: Shape, rows: Ordered[Row], drawn: Drawn | None = None
    ) -> tuple[Callable[[], None], Scores] | None:
        """Of this shape, with `rows` as its step; recorded, if it was not. To compute these rows twice does no harm."""
        step = self._inputs.take(rows, shape, padding_block=self._padding_block, drawn=drawn)
        if shape not in self._graphs and self.broken is None:
            logits = self._logits[: shape.rows]
            try:
                self._compute(step, logits)  # whatever is compiled or loaded at first use cannot be recorded
                self._graphs[shape] = self._record(lambda: self._compute(step, logits))
            except RuntimeError as error:
                self.broken = " ".join(str(error).split())
                log.warning("decode steps are launched kernel by kernel, which is slower: %s", self.broken)
        return self._graphs.get(shape)


class CudaRecorder:
    """Implements Record. All graphs take their memory from one pool."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, work: Callable[[], Scores]) -> tuple[Callable[[], None], Scores]:
        graph = torch.cuda.CUDAGraph()
        # thread_local: what other threads ask of the driver meanwhile is no fault.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            left = work()
        return graph.replay, left


def sizes(first: int, last: int, *, times: int) -> list[int]:
    """first, first * times … and at the end `last`."""
    found = []
    while first < last:
        found.append(first)
        first *= times
    return [*found, last]


def _holding(sizes: list[int], count: int) -> int:
    return next(size for size in sizes if size >= count)
