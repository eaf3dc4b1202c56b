"""Ids: a prefix that says what the thing is, and a UUIDv7 that sorts by time. They are names, not secrets."""
from uuid_utils import uuid7


def new_id(prefix: str) -> str:
    """A new id such as `conv_0199…`; prefixes in use: user login key conv msg resp."""
    return f"{prefix}_{uuid7()}"
