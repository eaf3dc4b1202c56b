"""What a Generation tells while it runs. Facts for any front end; not the wire protocol (server/chat/protocol.py)."""
from dataclasses import dataclass

from .chat import ToolCall


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one generation. `cached_tokens` of the `input_tokens` were not computed again.

    `reasoning_tokens` of the `output_tokens` were thoughts before the answer, their tags among them.
    """

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens


@dataclass(frozen=True, slots=True)
class Timings:
    """Milliseconds since submit: to a place in the batch, to the first token, in all. `tps`: decoded tokens/s."""

    queue_ms: float = 0.0
    ttft_ms: float = 0.0
    total_ms: float = 0.0
    tps: float = 0.0


@dataclass(frozen=True, slots=True)
class Queued:
    """Place in the queue, counted from 1; latest wins."""

    place: int
    eta_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Started:
    """The scheduler took the sequence: what of its prompt was found computed already."""

    input_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Prefilled:
    """How far the prompt is computed, in tokens; latest wins."""

    done: int
    total: int


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token and its log-probability, by the model's logits as they were before anything changed them.

    token: its text, with U+FFFD for part of a character; its name where it has none (an end token, say).
    data: its bytes. Of a token of the answer what is in the text of it: those of all tokens together are the text.
    top: the likeliest tokens in its place, likeliest first, as many as were asked for.
    """

    token: str
    data: bytes
    logprob: float  # at least LOWEST
    top: "tuple[TokenLogprob, ...]" = ()


LOWEST = -9999.0
"""Stands for every smaller log-probability: JSON has no infinity."""


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """Those of the prompt's tokens from the second one on, once, before the first of the answer."""

    tokens: tuple[TokenLogprob, ...]


@dataclass(frozen=True, slots=True)
class Text:
    """Text that is final: no half character, no beginning of a stop string. `token_ids` came with it (may be none).

    `logprobs`, where they were asked for, are those of the tokens whose text is out with this piece.
    """

    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Reasoning:
    """As Text, of what the model thinks before it answers; without the tags around it."""

    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Called:
    """The model calls a tool: its `index`-th call in this answer, told when it is whole. What came with it: as Text.

    One that is not `whole` was cut with the answer, and is the last: of its arguments there is the beginning.
    """

    index: int
    call: ToolCall
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    whole: bool = True


@dataclass(frozen=True, slots=True)
class Finished:
    """The end, exactly once. `reason`: stop | length | cancelled | failed | stopped (the engine was).

    `token_ids` are all ids of the answer, cut where its text is cut. `stop` is the matched stop string or id.
    `error`: why it failed. `refused`: what was asked for leaves no answer; else the fault is ours.
    """

    reason: str
    usage: Usage
    token_ids: tuple[int, ...]
    timings: Timings
    stop: str | int | None = None
    error: str | None = None
    refused: bool = False


Event = Queued | Started | Prefilled | PromptLogprobs | Text | Reasoning | Called | Finished


@dataclass(frozen=True, slots=True)
class EngineStats:
    """One look at the engine, consistent within itself.

    Blocks: `free` hold nothing, `cached` can be evicted, `pinned` belong to idle sessions, `running` to sequences.
    """

    state: str = "idle"  # idle | prefilling | decoding | stalled | dead
    steps: int = 0
    running: int = 0
    queued: int = 0
    sessions: int = 0
    blocks_total: int = 0
    blocks_free: int = 0
    blocks_cached: int = 0
    blocks_pinned: int = 0
    blocks_running: int = 0
    tokens_computed: int = 0
    tokens_sampled: int = 0
    tokens_reused: int = 0
    preemptions: int = 0
    last_step_age: float = 0.0  # seconds since the last finished step
