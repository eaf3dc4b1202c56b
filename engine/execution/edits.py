"""Edits: which logits of a row are changed before its next id is drawn, and how, as plain numbers. Not the draw.

A logit l becomes (l / divisor where it is above zero, else l * divisor) + added; added is -inf for what is never drawn.
Penalties, logit_bias, allowed_token_ids, bad_words and the ends that min_tokens holds back are all said so, in one list
a row. A bad word's last id is banned where the ids before it were just generated.
"""
from dataclasses import dataclass

import numpy as np

from hamdam.kernels.cpu.facts import Floats, Ints

from ..grammar.lexicon import Words
from ..policy.sampling_params import BANNED
from ..policy.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Edits:
    """ids [E], no two alike; divisors and added [E]."""

    ids: Ints
    divisors: Floats
    added: Floats


NONE = Edits(np.zeros(0, np.int32), np.zeros(0, np.float32), np.zeros(0, np.float32))

CERTAIN = np.full(1, 3e38, np.float32)  # added to a logit, it is the largest; and a number still


def edits(sequence: Sequence, vocabulary: int, allowed: Words | None = None) -> Edits:
    """allowed: a bit for each id that may be drawn at all; None: all of them."""
    certain = sequence.given
    if certain is None and sequence.thinking is not None:
        certain = sequence.thinking.due(sequence.ids, sequence.num_prompt)
    if certain is not None:
        return Edits(np.array([certain], np.int32), np.ones(1, np.float32), CERTAIN)
    params = sequence.params
    holds = sequence.num_generated < params.min_tokens
    if not holds and params.leaves_logits_alone:
        return NONE
    if sequence.note is None:
        sequence.note = Appearances(sequence, vocabulary)
    appearances: Appearances = sequence.note
    return appearances.edits(sequence, holds, allowed)


def without(words: Words, ids: Ints) -> Words:
    """The bits without those of some ids."""
    left = words.copy()
    np.bitwise_and.at(left, ids >> 5, ~(np.uint32(1) << (ids & 31).astype(np.uint32)))
    return left


class Appearances:
    """The ids of one sequence whose logits are or may be changed, and how often each was generated.

    It follows `sequence.ids`, which only ever grow, so that a step costs what is new in them.
    """

    def __init__(self, sequence: Sequence, vocabulary: int) -> None:
        params = sequence.params
        self._vocabulary = vocabulary
        self._places: dict[int, int] = {}
        self._ids = np.zeros(16, np.int32)
        self._times = np.zeros(16, np.int32)  # generated
        self._prompted = np.zeros(16, np.bool_)
        self._bias = np.zeros(16, np.float32)
        prompt = sequence.ids[: sequence.num_prompt] if params.repetition_penalty != 1 else []
        biases = {id: -np.inf if bias <= BANNED else bias for id, bias in params.logit_bias}
        if params.allowed_token_ids is not None:
            biases |= dict.fromkeys({*range(vocabulary)} - {*params.allowed_token_ids}, -np.inf)
        held = [id for id in sequence.held_back_ids if id < vocabulary] if params.min_tokens else []
        for id in (*prompt, *biases, *held, *(ids[-1] for ids in sequence.bad_ids)):
            self._place(id)
        self._prompted[[self._places[id] for id in prompt]] = True
        self._bias[[self._places[id] for id in biases]] = list(biases.values())
        self._held = [self._places[id] for id in held]
        self._read = sequence.num_prompt

    def edits(self, sequence: Sequence, holds: bool, allowed: Words | None = None) -> Edits:
        """holds: whether the answer is too short to end. allowed: as above."""
        params = sequence.params
        if params.penalises:
            for id in sequence.ids[self._read :]:
                place = self._place(id)
                self._times[place] += 1
        self._read = len(sequence.ids)
        count = len(self._places)
        times, generated = self._times[:count], self._times[:count] > 0
        divisors = np.where(generated | self._prompted[:count], np.float32(params.repetition_penalty), np.float32(1))
        taken = np.float32(params.frequency_penalty) * times + np.float32(params.presence_penalty) * generated
        added = self._bias[:count] - taken.astype(np.float32)
        if holds:
            added[self._held] = -np.inf
        bad = added.copy()
        for *before, last in sequence.bad_ids:
            if before == sequence.ids[max(sequence.num_prompt, len(sequence.ids) - len(before)) : len(sequence.ids)]:
                bad[self._places[last]] = -np.inf
        banned = self._ids[:count][np.isneginf(bad)]
        if len(banned) < self._vocabulary if allowed is None else without(allowed, banned).any():
            added = bad  # else nothing would be left: bad words then have to be
        return Edits(self._ids[:count].copy(), divisors, added)

    def _place(self, id: int) -> int:
        """Where it is kept; new arrays, where there is no room for it."""
        place = self._places.setdefault(id, len(self._places))
        if place == len(self._ids):
            for name in ("_ids", "_times", "_prompted", "_bias"):
                array = getattr(self, name)
                setattr(self, name, np.concatenate((array, np.zeros_like(array))))
        self._ids[place] = id
        return place
