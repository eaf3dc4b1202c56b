"""Rehearsal: steps of tokens that nobody asked about, to measure, to compile and to compare by. It computes nothing."""
from collections.abc import Iterator

from ..chat import Owner
from ..policy.batch import Row
from ..policy.sampling_params import SamplingParams
from ..policy.sequence import Sequence
from .step_inputs import blocks_of

NOBODY = Owner("", "", max_running=None, max_queued=None)
DRAWN = SamplingParams(temperature=1.0, top_p=0.9)


def made_up_rows(tokens: int, rows: int) -> list[Row]:
    """So many tokens shared out evenly, in rows that all sample. All KV goes to block 0, and is worth nothing."""
    counts = [tokens // rows + (number < tokens % rows) for number in range(rows)]
    return [
        Row(made_up(number, [0] * count, [0] * blocks_of(count)), 0, count, sample=True)
        for number, count in enumerate(counts)
    ]


def made_up(number: int, ids: list[int], blocks: list[int]) -> Sequence:
    return Sequence(
        id=-1 - number, owner=NOBODY, ids=ids, num_prompt=len(ids), params=DRAWN, seed=number, max_tokens=1,
        block_table=blocks,
    )


def numbers_of_tokens(most: int) -> Iterator[int]:
    """Powers of two and one more than each: kernels are compiled for what lies between two powers, and apart from it
    for what is a multiple of 16."""
    tokens = 16
    while tokens < most:
        yield tokens
        yield tokens + 1
        tokens *= 2
