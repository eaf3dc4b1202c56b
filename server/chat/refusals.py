"""Refusals: what the engine says no with, as an ApiError. It decides nothing; the codes are errors.py's."""
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from hamdam.engine import EngineStopped, Finished, InvalidField, PromptTooLong, QueueFull, Refusal, TooManyInFlight

from ..errors import ApiError

NOTHING: Mapping[str, str] = {}


@contextmanager
def engine_refusals(prefix: str = "", *, texts: str = "", names: Mapping[str, str] = NOTHING) -> Iterator[None]:
    """Fields by the client's own names: `prefix` stands before a parameter (`sampling.`), `texts` for the messages, and
    `names` has those that were called otherwise."""
    try:
        yield
    except PromptTooLong as error:
        sentence = f"The conversation has {error.tokens} tokens, at most {error.limit} fit."
        raise ApiError("context_length_exceeded", sentence) from error
    except QueueFull as error:
        raise ApiError("queue_full", "Too many requests are waiting.", retry_after_ms=_ms(error)) from error
    except TooManyInFlight as error:
        sentence = f"You have {error.limit} answers running or waiting already."
        raise ApiError("too_many_in_flight", sentence, retry_after_ms=_ms(error)) from error
    except InvalidField as error:
        field = error.name.partition("[")[0]
        own = error.name if field == "tools" else prefix + error.name
        param = texts if texts and field == "messages" else names.get(error.name, own)
        raise ApiError("invalid_field", f"{error.why}.", param=param) from error
    except EngineStopped as error:
        raise ApiError("engine_unavailable", "The engine does not run.") from error


def failure(finished: Finished) -> ApiError:
    """Why an answer failed that had begun: by what was asked for, so that to ask again is in vain, or by our fault."""
    code = "invalid_field" if finished.refused else "internal"
    return ApiError(code, f"The answer failed: {finished.error}." if finished.error else "The answer failed.")


def _ms(refusal: Refusal) -> int | None:
    return None if refusal.retry_after is None else int(refusal.retry_after * 1e3)
