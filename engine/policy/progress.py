"""What a step changed, one fact at a time, for whoever reports it. Not events for a client (engine/events.py)."""
from dataclasses import dataclass

from .batch import Logprobs
from .sequence import Sequence


@dataclass(frozen=True, slots=True)
class Admitted:
    """Taken from the queue for the first time: `cached` tokens of its prompt were found computed."""

    sequence: Sequence
    cached: int


@dataclass(frozen=True, slots=True)
class Computed:
    """`done` of the `total` prompt tokens are computed. With done == total the first token comes next."""

    sequence: Sequence
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class PromptScored:
    """The logprobs of one more token of the prompt: of the second one first, once each."""

    sequence: Sequence
    logprobs: Logprobs


@dataclass(frozen=True, slots=True)
class Appended:
    """`token` is the next id of the answer. An end id is never appended: it is `Ended.stop_id`.

    `logprobs` are there where the sequence asks for them.
    """

    sequence: Sequence
    token: int
    logprobs: Logprobs | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """The end, once a sequence; its blocks are given back already. `reason`: stop | length | cancelled | failed.

    `error` and `refused` are Broken's, where it failed.
    """

    sequence: Sequence
    reason: str
    stop_id: int | None = None
    error: str | None = None
    refused: bool = False


Progress = Admitted | Computed | PromptScored | Appended | Ended
