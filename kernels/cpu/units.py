"""Units: a step's attention cut into pieces that any thread can take. Not attention itself.

A unit is a few tokens over one split of the keys (attention.py). Units go split by split, each in the order of the
rows: where neighbours begin alike they hold the same blocks, which then lie in the processor's cache when the second of
them is computed. And neighbours that see all of a split in the same blocks become one unit, whose keys are read once.
Neither changes what a token computes.
"""
import numpy as np

from .attention import ROWS, SPLIT
from .lanes import WIDTH, peek_int, poke_int
from .native import native
from .plan import HEADS, KV_HEADS, POSITIONS, STARTS, TABLE_WIDTH, TABLES, UNIT, UNITS, WINDOW
from .plan import ROWS as NUMBER_OF_ROWS

BLOCKS = SPLIT // WIDTH  # KV blocks of a split
UNIT_BYTES = 16


@native
def share_out(plan: np.ndarray) -> None:
    """Writes the units, and how many they are, into the plan."""
    together = max(1, ROWS // (plan[HEADS] // plan[KV_HEADS]))  # tokens whose queries fill a tile
    tokens = peek_int(plan[STARTS] + 4 * plan[NUMBER_OF_ROWS])
    splits = 0
    for token in range(tokens):
        splits = max(splits, peek_int(plan[POSITIONS] + 4 * token) // SPLIT + 1)
    units = 0
    for split in range(splits):
        before = -1  # the row that the last unit may still grow beyond
        for row in range(plan[NUMBER_OF_ROWS]):
            end = peek_int(plan[STARTS] + 4 * (row + 1))
            for first in range(peek_int(plan[STARTS] + 4 * row), end, together):
                count = min(together, end - first)
                if not _sees(plan, first, count, split):
                    continue
                if count == 1 and _whole(plan, first, split):
                    last = plan[UNIT] + UNIT_BYTES * (units - 1)
                    if (
                        before >= 0 and peek_int(last) + peek_int(last + 4) == first
                        and peek_int(last + 4) < together and _alike(plan, before, row, split)
                    ):
                        poke_int(last + 4, np.int32(peek_int(last + 4) + 1))
                    else:
                        _write(plan[UNIT] + UNIT_BYTES * units, first, count, split, row)
                        units += 1
                    before = row
                else:
                    _write(plan[UNIT] + UNIT_BYTES * units, first, count, split, row)
                    units += 1
                    before = -1
    plan[UNITS] = units


@native
def _sees(plan: np.ndarray, first: int, count: int, split: int) -> bool:
    """Whether any of the tokens sees a key of this split."""
    if split * SPLIT > peek_int(plan[POSITIONS] + 4 * (first + count - 1)):
        return False
    lowest = peek_int(plan[POSITIONS] + 4 * first) + 1 - plan[WINDOW]
    return plan[WINDOW] == 0 or (split + 1) * SPLIT > lowest


@native
def _whole(plan: np.ndarray, token: int, split: int) -> bool:
    """Whether a token sees every key of this split."""
    return plan[WINDOW] == 0 and peek_int(plan[POSITIONS] + 4 * token) >= (split + 1) * SPLIT - 1


@native
def _alike(plan: np.ndarray, row: int, other: int, split: int) -> bool:
    """Whether two rows hold this split in the same blocks."""
    for block in range(split * BLOCKS, (split + 1) * BLOCKS):
        if peek_int(plan[TABLES] + 4 * (row * plan[TABLE_WIDTH] + block)) != peek_int(
            plan[TABLES] + 4 * (other * plan[TABLE_WIDTH] + block)
        ):
            return False
    return True


@native
def _write(unit: int, first: int, count: int, split: int, row: int) -> None:
    for place, value in enumerate((first, count, split, row)):
        poke_int(unit + 4 * place, np.int32(value))
