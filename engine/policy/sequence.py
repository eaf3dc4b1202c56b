"""Sequence: one generation as the scheduler sees it. Ids and block numbers only; it knows no text and no tensor."""
from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

from ..chat import Owner
from ..grammar.matcher import Matcher
from .chain import Link
from .sampling_params import SamplingParams
from .thinking import Thinking


class Status(enum.Enum):
    WAITING = "waiting"  # holds no blocks; its session does
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Sequence:
    """`num_computed` chases `len(ids)`: one path for prefill, decode, and the time after a preemption.

    ids: prompt, then what was sampled. block_table[i] holds tokens 16 i … 16 i + 15.
    seed: always set (the engine draws one where the client gave none), so that a resumed row repeats no draw.
    """

    id: int
    owner: Owner
    ids: list[int]
    num_prompt: int
    params: SamplingParams
    seed: int
    max_tokens: int  # clipped to the context already
    stop_ids: frozenset[int] = frozenset()  # EOS unless ignore_eos, which a grammar's end overrules, and stop_token_ids
    held_back_ids: frozenset[int] = frozenset()  # not sampled before min_tokens
    bad_ids: tuple[tuple[int, ...], ...] = ()  # what params.bad_words are in ids
    matcher: Matcher | None = None  # follows the grammar that the answer is to have
    thinking: Thinking | None = None  # where what it may think is bounded
    given: int | None = None  # its next id, where that is known already and only scored (prompt_rows.py)
    session_id: str | None = None
    status: Status = Status.WAITING
    num_computed: int = 0
    num_cached: int = 0  # of the prompt, found computed when first scheduled
    num_scored: int = 0  # tokens of the prompt whose next one was scored, where prompt_logprobs asks for it
    block_table: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    # What the scheduler notes beside it; nothing outside engine/policy reads these.
    links: list[Link] = field(default_factory=list)  # of its full blocks
    started: bool = False
    waits_on: bytes | None = None  # key of a block that another running sequence is about to publish
    note: Any = None  # the runner's own, of what the sequence's ids mean for its draws
    passed_by: int = 0  # how many were taken from the queue while this one did not fit

    @property
    def num_generated(self) -> int:
        return len(self.ids) - self.num_prompt

    @property
    def is_scoring(self) -> bool:
        """Whether tokens of its prompt are still to be scored."""
        return self.params.prompt_logprobs is not None and self.num_scored < self.num_prompt - 1

    @property
    def num_uncomputed(self) -> int:
        return len(self.ids) - self.num_computed
