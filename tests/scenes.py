"""Scenes: async tests that are given what they play in, opened around each and closed after it. Not a test."""
import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

Scene = Callable[..., Awaitable[None]]
Opened = Callable[[Path], AbstractAsyncContextManager[Any]]


def given(name: str, opened: Opened) -> Callable[[Scene], Callable[..., None]]:
    """Gives an async test what is `opened` in its own folder, as the argument `name`; the others are pytest's."""

    def decorate(test: Scene) -> Callable[..., None]:
        @functools.wraps(test)
        def run(tmp_path: Path, **others: Any) -> None:
            async def scene() -> None:
                async with opened(tmp_path) as made:
                    await test(made, **others)

            asyncio.run(scene())

        others = [p for argument, p in inspect.signature(test).parameters.items() if argument != name]
        place = inspect.Parameter("tmp_path", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        run.__signature__ = inspect.Signature([place, *others])  # type: ignore[attr-defined]
        return run

    return decorate
