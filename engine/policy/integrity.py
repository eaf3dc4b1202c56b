"""The complaint of everything that has to add up in policy. What adds up with what is said where it is kept."""
from ..errors import EngineError


class IntegrityError(EngineError):
    """Counts and holders do not agree: a bug of ours. The message names what does not add up."""


def check(holds: bool, complaint: str) -> None:
    if not holds:
        raise IntegrityError(complaint)
