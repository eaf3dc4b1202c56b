"""Tile: how a matrix kernel cuts its work, and how many programs share a sum. Each kernel has a table of its own.

No autotuning: a table is read at a glance, costs nothing at the start and gives the same sums every day.
"""
from collections.abc import Sequence
from dataclasses import dataclass

from .chip import Chip


@dataclass(frozen=True, slots=True)
class Tile:
    """A program makes `outputs` numbers of `tokens` tokens, reading `inputs` of each at a time.

    fill: programs wanted for each processor: as long as there are fewer, the inputs are split among several, whose
      sums another kernel adds in a fixed order (split_k.py). 0: never, since many tokens make enough programs.
    """

    tokens: int
    outputs: int
    inputs: int
    warps: int
    stages: int
    fill: int = 0

    def stages_on(self, chip: Chip, stage_bytes: int) -> int:
        """As many as the table says, or as have room."""
        return max(1, min(self.stages, chip.shared_bytes // stage_bytes + chip.spare_stages))

    def inputs_of_a_split(self, chip: Chip, outputs: int, inputs: int, *, least: int) -> int:
        """A multiple of `self.inputs`, and `least` or more where there are as many. Of the number of tokens unaware."""
        programs = -(-outputs // self.outputs)
        splits = max(1, min(-(-self.fill * chip.processors // programs), inputs // least))
        return -(-inputs // (splits * self.inputs)) * self.inputs


def tile_for(table: Sequence[Tile], tokens: int, *, invariant: bool = False) -> Tile:
    """The first that holds all tokens, or the last. `table` is in the order of their tokens.

    invariant: always the second, which does for few and for many: a row's sum is then the same in any company.
    """
    if invariant:
        return table[1]
    return next((tile for tile in table if tokens <= tile.tokens), table[-1])
