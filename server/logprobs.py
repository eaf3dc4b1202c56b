"""Logprobs as both doors say them, in OpenAI's shape. What is counted, and when, is the engine's."""
from collections.abc import Iterable
from functools import lru_cache

from msgspec import Struct

from hamdam.engine import TokenLogprob


class Likely(Struct, frozen=True, kw_only=True):
    """A token, the logarithm of its probability (-9999.0: none to speak of), and the token's bytes in UTF-8.

    A token may hold part of a character, or have no text: `token` is then U+FFFD, or the token's name.
    """

    token: str
    logprob: float
    bytes: list[int]


class Listed(Likely, frozen=True, kw_only=True):
    """A token of the answer. Its `bytes` are what is in the text of it, so that those of all of them are the text."""

    top_logprobs: list[Likely]


def listed(logprobs: Iterable[TokenLogprob]) -> list[Listed]:
    return [
        Listed(token=one.token, logprob=one.logprob, bytes=_numbers(one.data), top_logprobs=[*map(_likely, one.top)])
        for one in logprobs
    ]


def _likely(one: TokenLogprob) -> Likely:
    return Likely(token=one.token, logprob=one.logprob, bytes=_numbers(one.data))


@lru_cache(1 << 14)
def _numbers(data: bytes) -> list[int]:
    """Not to be changed: a run keeps all that it listed, and most of that are the same few tokens."""
    return list(data)
