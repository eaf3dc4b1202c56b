"""PromptRows: a piece of a prompt whose tokens are scored, as rows of one token each. It computes nothing.

A row gives logits after its last token alone, so a prompt of which every token is to be scored is computed a token a
row, all in the blocks of one sequence. In each of these rows the next id is known, and there is nothing to draw.
"""
from functools import cache

from .batch import Row
from .sampling_params import SamplingParams
from .sequence import Sequence

SCORED_A_STEP = 16
"""Rows of this kind in one step, whoever asks: each costs a pass through the head, and room for its logits."""


def prompt_rows(sequence: Sequence, start: int, count: int) -> list[Row]:
    """Of `sequence.ids[start:start + count]`. What was scored before a preemption is only computed again."""
    end = start + count
    again = min(end, sequence.num_scored) - start
    rows = [Row(sequence, start, again, sample=False)] if again > 0 else []
    last = min(end, sequence.num_prompt - 1)  # the token from which on there is nothing to score
    rows += [_row(sequence, position) for position in range(start + max(again, 0), last)]
    if last < end:
        rows.append(Row(sequence, last, end - last, sample=end == len(sequence.ids)))
    return rows


def _row(sequence: Sequence, position: int) -> Row:
    ids, params = sequence.ids, _scored(sequence.params.prompt_logprobs or 0)
    stand_in = Sequence(
        id=sequence.id, owner=sequence.owner, ids=ids, num_prompt=len(ids), params=params, seed=0, max_tokens=1,
        given=ids[position + 1], block_table=sequence.block_table,
    )
    return Row(stand_in, position, 1, sample=True, scores=sequence)


@cache
def _scored(top: int) -> SamplingParams:
    return SamplingParams(temperature=0, logprobs=True, top_logprobs=top)
