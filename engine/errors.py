"""Every way in which the engine says no. It says why and by what number; it does not know HTTP or a wire format.

    EngineError
    ├── ModelError            the model file is not usable: one line, shown before the port opens
    ├── Refusal               said before any work was done for a request
    │   ├── InvalidField      a parameter outside its range, by name
    │   ├── PromptTooLong     more tokens than the context or the pool can ever hold
    │   ├── QueueFull         the queue of the whole engine is full
    │   └── TooManyInFlight   this owner's own queue is full
    ├── SequenceFailed        one sequence broke (not-a-number logits, say); the others go on
    └── EngineStopped         the engine was stopped, or its step loop died
"""


class EngineError(Exception):
    """Base of everything the engine raises on purpose."""


class ModelError(EngineError):
    """The model cannot be used. `str(error)` is one line fit for a terminal."""


class Refusal(EngineError):
    """Said before any work was done; asking again unchanged makes sense only where `retry_after` is set."""

    retry_after: float | None = None  # seconds


class InvalidField(Refusal):
    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{name}: {why}")
        self.name, self.why = name, why


class PromptTooLong(Refusal):
    def __init__(self, tokens: int, limit: int) -> None:
        super().__init__(f"the prompt has {tokens} tokens, at most {limit} fit")
        self.tokens, self.limit = tokens, limit


class QueueFull(Refusal):
    def __init__(self, place: int, retry_after: float) -> None:
        super().__init__(f"{place - 1} requests are waiting already; try again in {retry_after:.0f} s")
        self.place, self.retry_after = place, retry_after


class TooManyInFlight(Refusal):
    def __init__(self, limit: int, retry_after: float) -> None:
        super().__init__(f"you have {limit} answers running or waiting already")
        self.limit, self.retry_after = limit, retry_after


class SequenceFailed(EngineError):
    """One sequence broke; `str(error)` says how."""


class EngineStopped(EngineError):
    """The engine was stopped, or died: every open generation ends with this."""
