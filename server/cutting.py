"""Cutting a connection whose peer reads nothing. A close in order would wait, for ever, until all is read.

ASGI has no word for it: serving.py puts the way into each scope's extensions under a name of ours.
"""
from starlette.types import Scope

CUT = "hamdam.abort"


def cut(scope: Scope) -> bool:
    """False where the server under us gave no way to."""
    abort = scope.get("extensions", {}).get(CUT)
    if abort is not None:
        abort()
    return abort is not None
