"""Masks: what grammars leave the rows of a step, one bit an id, and what else is changed of their logits. Not the draw.

Where a grammar and other parameters meet:
* a thought that the prompt opened is free, but does not end the answer; the grammar begins behind it;
* where only messages that call are held, all others are free, and may end the answer;
* an answer that its grammar leaves nothing but its end ends, whatever else was asked;
* where the grammar may end or go on, ends may be drawn, but not with `ignore_eos`, nor before `min_tokens`;
* `bad_words` give way where nothing else is left, as they always do;
* where bans (`logit_bias` of -100, `allowed_token_ids`) leave nothing of what the grammar allows, the answer ends if
  its grammar may end, and else this sequence fails alone and says so.
"""
from collections.abc import Sequence as Ordered
from dataclasses import dataclass

import numpy as np

from hamdam.kernels.cpu.facts import Ints

from ..grammar.lexicon import Words
from ..grammar.matcher import NO_TOKEN, Matcher
from ..policy.batch import Broken
from ..policy.sequence import Sequence
from .edits import NONE, Edits, edits, without

ALL_BANNED = "logit_bias and allowed_token_ids leave no token that the grammar allows"


@dataclass(frozen=True, slots=True)
class Limits:
    """Of S rows: what may be drawn, and what is changed of it."""

    words: Words  # [M, words of 32 ids]
    of: Ints  # [S] which of them a row has; -1: none
    edits: list[Edits]  # [S]
    broken: dict[int, Broken]  # rows that draw nothing


def limits(sequences: Ordered[Sequence], vocabulary: int) -> Limits:
    """Of the rows of a step that draw. Masks are computed side by side."""
    of = np.full(len(sequences), -1, np.int32)
    changes: list[Edits] = [NONE] * len(sequences)
    broken: dict[int, Broken] = {}
    matchers: list[Matcher] = []
    for row, sequence in enumerate(sequences):
        if sequence.matcher is None:
            changes[row] = edits(sequence, vocabulary)
            continue
        sequence.matcher.follow(sequence.ids[sequence.num_prompt :])
        of[row] = len(matchers)
        matchers.append(sequence.matcher)
    if not matchers:
        return Limits(np.zeros((0, 0), np.uint32), of, changes, broken)
    words, may_end = Matcher.masks(matchers)
    for row in np.flatnonzero(of >= 0).tolist():
        index = int(of[row])
        found = _limit(sequences[row], words[index], may_end[index], vocabulary)
        if isinstance(found, Broken):
            broken[row], of[row] = found, -1
        else:
            changes[row] = found
    return Limits(words, of, changes, broken)


def _limit(sequence: Sequence, words: Words, may_end: bool, vocabulary: int) -> Edits | Broken:
    """Changes the words of this row."""
    assert sequence.matcher is not None
    fault = sequence.matcher.fault or (None if may_end or words.any() else NO_TOKEN)
    if fault is not None:
        return Broken(f"the grammar cannot be followed: {fault}", refused=True)
    ends = np.array([id for id in sequence.held_back_ids if id < vocabulary], np.int32)
    if sequence.matcher.waits:
        words[:] = 0xFFFFFFFF
        if not sequence.matcher.may_end:
            words[:] = without(words, ends)
        change = edits(sequence, vocabulary, words)
        return change if _something_left(words, change, vocabulary) else Broken(ALL_BANNED, refused=True)
    if words.any():
        if may_end and not sequence.params.ignore_eos:
            _allow(words, ends)
        change = edits(sequence, vocabulary, words)
        if _something_left(words, change, vocabulary):
            return change
        if not may_end:
            return Broken(ALL_BANNED, refused=True)
    words[:] = 0
    _allow(words, ends)
    return NONE


def _allow(words: Words, ids: Ints) -> None:
    np.bitwise_or.at(words, ids >> 5, np.uint32(1) << (ids & 31).astype(np.uint32))


def _something_left(words: Words, change: Edits, vocabulary: int) -> bool:
    banned = change.ids[np.isneginf(change.added)]
    if not len(banned):
        return True
    left = np.unpackbits(without(words, banned).view(np.uint8), bitorder="little")
    return bool(left[:vocabulary].any())
