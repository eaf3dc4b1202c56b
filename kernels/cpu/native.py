"""native: how functions of the CPU path are compiled by numba. Not when: that is the first call's or warm.py's.

One function is compiled once: numba would do it again for every constant that a caller happens to pass.
"""
from collections.abc import Callable
from typing import Any, TypeVar

from numba import njit, types
from numba.extending import register_jitable

Function = TypeVar("Function", bound=Callable[..., Any])


def native(function: Function) -> Function:
    """A function that other compiled functions call. It needs no lock of the interpreter, and nothing checks its
    arguments: they are int64 or float64, or arrays of int64."""
    return _once(njit(nogil=True, no_cfunc_wrapper=True)(function))


def entry(function: Function) -> Function:
    """A function that Python calls: what was compiled is kept on disk, with all that it calls."""
    return _once(njit(nogil=True, cache=True, no_cfunc_wrapper=True)(function))


def everywhere(function: Function) -> Function:
    """A function of a few numbers that other compiled functions call, and Python too, which need not compile it."""
    return register_jitable(function)


def _once(dispatcher: Any) -> Any:
    resolve = dispatcher.get_call_template

    def without_constants(arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        return resolve(tuple(types.unliteral(one) for one in arguments), named)

    dispatcher.get_call_template = without_constants
    return dispatcher
