"""Ending: how a run ended, as its row and its last event say it. What the engine says is hamdam.engine's Finished."""
from dataclasses import asdict, dataclass
from typing import Any

from hamdam.engine import Finished, Timings, Usage

from ..errors import ApiError
from .protocol import (
    ResponseCancelled,
    ResponseCompleted,
    ResponseFailed,
    ResponseIncomplete,
    ResponseInterrupted,
    RunEnd,
)
from .refusals import failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    status: str  # completed | incomplete | cancelled | failed | interrupted
    finish_reason: str
    usage: dict[str, Any] | None = None
    timings: dict[str, Any] | None = None
    error: dict[str, Any] | None = None

    def event(self, **names: Any) -> RunEnd:
        """`names`: the ids of the run and the event's number."""
        given = names | {"usage": self.usage, "timings": self.timings}
        match self.status:
            case "completed":
                return ResponseCompleted(**given)
            case "incomplete":
                return ResponseIncomplete(**given, reason=self.finish_reason)
            case "cancelled":
                return ResponseCancelled(**given)
            case "interrupted":
                return ResponseInterrupted(**given)
        return ResponseFailed(**given, error=self.error or FAULT)

    def not_saved(self, **names: Any) -> RunEnd:
        """What is said instead when the end could not be stored."""
        error = ApiError("internal", "The answer could not be saved; saving is tried again.").body()
        return ResponseFailed(**names, usage=self.usage, timings=self.timings, error=error, saved=False)


FAULT = ApiError("internal", "The answer failed.").body()


def ending_of(finished: Finished, *, called: bool, going_down: bool, engine_dead: bool) -> Ending:
    """`called`: the answer makes calls. `going_down`: the server ends its runs, they can go on after the restart."""
    facts: dict[str, Any] = {"usage": usage_dict(finished.usage), "timings": timings_dict(finished.timings)}
    match finished.reason:
        case "stop":
            return Ending(status="completed", finish_reason="tool_calls" if called else "stop", **facts)
        case "length":
            return Ending(status="incomplete", finish_reason="length", **facts)
        case "cancelled" if not going_down:
            return Ending(status="cancelled", finish_reason="cancelled", **facts)
        case "cancelled" | "stopped" if not engine_dead:
            return Ending(status="interrupted", finish_reason="interrupted", **facts)
        case "stopped":
            error = ApiError("engine_unavailable", "The engine broke.").body()
        case _:
            error = failure(finished).body()
    return Ending(status="failed", finish_reason="failed", error=error, **facts)


def usage_dict(usage: Usage) -> dict[str, Any]:
    said = {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
    }
    thought = {"output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens}}
    return said | thought if usage.reasoning_tokens else said


def timings_dict(timings: Timings) -> dict[str, float]:
    return {name: round(value, 1) for name, value in asdict(timings).items()}
