"""WholeSession: an AsyncSession whose steps run to their end even when their task is cancelled. It decides nothing.

Why: a cancellation that reaches the driver in the middle of a statement makes SQLAlchemy close the connection, and a
SQLite connection that is closed with a statement half read lives on, with its transaction and its lock, until the
garbage collector finds it. Here the cancellation follows when the step is done, on a connection that is in order.
"""
import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from sqlalchemy.ext.asyncio import AsyncSession

P = ParamSpec("P")
R = TypeVar("R")


async def to_the_end(work: Coroutine[Any, Any, R]) -> R:
    """The result of `work`; cancelled meanwhile, the work is finished first."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is None:
        return task.result()
    task.exception()  # looked at, so that nobody reports it as lost: the cancellation is what counts
    raise cancelled


def _whole(step: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, Awaitable[R]]:
    @wraps(step)
    async def run(*args: P.args, **kwargs: P.kwargs) -> R:
        return await to_the_end(step(*args, **kwargs))

    return run


class WholeSession(AsyncSession):
    """What is not named here (streams) is not to be used: results are small and read at once."""

    connection = _whole(AsyncSession.connection)  # type: ignore[assignment]
    execute = _whole(AsyncSession.execute)  # type: ignore[assignment]
    scalar = _whole(AsyncSession.scalar)  # type: ignore[assignment]
    scalars = _whole(AsyncSession.scalars)  # type: ignore[assignment]
    get = _whole(AsyncSession.get)  # type: ignore[assignment]
    refresh = _whole(AsyncSession.refresh)  # type: ignore[assignment]
    delete = _whole(AsyncSession.delete)  # type: ignore[assignment]
    flush = _whole(AsyncSession.flush)  # type: ignore[assignment]
    commit = _whole(AsyncSession.commit)  # type: ignore[assignment]
    rollback = _whole(AsyncSession.rollback)  # type: ignore[assignment]
    close = _whole(AsyncSession.close)  # type: ignore[assignment]
