"""Identity: who is asking, as proven by a sign-in or a key. What they may do is in permissions.py."""
from dataclasses import dataclass

from ..errors import ApiError


@dataclass(frozen=True, slots=True)
class Identity:
    """Exactly one of `login_id` (a browser) and `key_id` (an API key) is set. `service`: it speaks for many people."""

    user_id: str
    name: str
    role: str  # admin | member
    login_id: str | None = None
    key_id: str | None = None
    service: bool = False


class Unauthorized(ApiError):
    """Nobody we know: no credential, one that never was, or one that ended. The sentence never says which."""

    def __init__(self, message: str = "Sign in, or send a valid API key.") -> None:
        super().__init__("unauthorized", message)


class Forbidden(ApiError):
    """We know you, and no."""

    def __init__(self, message: str = "You may not do this.") -> None:
        super().__init__("forbidden", message)
