"""Team: the threads that take a step together, and how they wait for each other. It knows no step.

All of them run compiled code without the interpreter's lock. Where one has to wait it spins for a moment, since the
others are mostly microseconds away, and then sleeps in the kernel until it is woken: on a machine that is busy with
something else it gives its core away instead of burning it, and at once where two of them were put on one core: the
other cannot get on until it does.

Nobody waits for a thread that has nothing to do (sharing.py), so one that was put to sleep may still walk through a
step when the others are done with it. A step is therefore a house with a door: thread 0 opens it when everything lies
ready, and closes it when all is done; before it changes anything it waits until the last one has left. Some work is
done outside (helping.py): who is busy there or inside is waited for only before a buffer is moved.

The board is a few int32, each on a cache line of its own, that all of them see:
  ORDER     the number of the step that may be entered; CLOSED where none may; END ends the team
  INSIDE    how many of the others are in it or at its door
  BUSY      how many of them take part in it, inside or outside
  SLEEPING  who may need to be woken         LAST      the core of the one that the others waited for
  CROWDED   a core where that was in vain    TICKETS   from here on a cell for each phase (sharing.py)
"""
import platform
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from .lanes import ADDRESS, I32, I64, const, operation, pointer
from .native import entry, native

CELL = 64  # bytes from one counter to the next: no two share a cache line
ORDER, INSIDE, BUSY, SLEEPING, LAST, CROWDED, TICKETS = (cell * CELL for cell in range(7))
SPINS = 4000  # some 100 us
CLOSED, END = 0, -1
_FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine()) if sys.platform == "linux" else None
_WAIT, _WAKE = 128, 129  # of a futex that no other process sees


@operation(types.int32, ADDRESS, types.int32)
def add_atomic(b, address, x):
    """Adds, and returns what was there before."""
    return b.atomic_rmw("add", pointer(b, address, I32), x, "seq_cst")


@operation(types.int32, ADDRESS)
def read_atomic(b, address):
    return b.load_atomic(pointer(b, address, I32), "seq_cst", 4)


@operation(types.none, ADDRESS, types.int32)
def write_atomic(b, address, x):
    b.store_atomic(x, pointer(b, address, I32), "seq_cst", 4)


@operation(types.int64, ADDRESS, types.int64)
def raise_atomic(b, address, x):
    """Makes an int64 at least x, and returns what was there before."""
    return b.atomic_rmw("max", pointer(b, address, I64), x, "seq_cst")


@operation(types.int64, ADDRESS)
def read_long(b, address):
    return b.load_atomic(pointer(b, address, I64), "seq_cst", 8)


@operation(types.none, ADDRESS, types.int64)
def write_long(b, address, x):
    b.store_atomic(x, pointer(b, address, I64), "seq_cst", 8)


@operation(types.none)
def pause(b):
    """Tells the processor that this loop waits."""
    if platform.machine() in ("x86_64", "AMD64"):
        nothing = ir.FunctionType(ir.VoidType(), [])
        b.call(cgutils.get_or_insert_function(b.module, nothing, "llvm.x86.sse2.pause"), [])


@operation(types.none)
def give_way(b):
    """Lets another thread have this core, if one wants it."""
    b.call(cgutils.get_or_insert_function(b.module, ir.FunctionType(I32, []), "sched_yield"), [])


@operation(types.none, ADDRESS, types.int32)
def sleep_while(b, address, x):
    """Sleeps until woken, or not at all where `x` stands there no longer. May return early."""
    _futex(b, address, _WAIT, x)


@operation(types.none, ADDRESS)
def wake_all(b, address):
    """Wakes whoever sleeps at this address."""
    _futex(b, address, _WAKE, const(I32, (1 << 31) - 1))


def _futex(b: ir.IRBuilder, address: Any, what: int, value: Any) -> None:
    if _FUTEX is None:  # no such call here: look again a little later
        give_way.emit(b)
        return
    kind = ir.FunctionType(I64, [I64], var_arg=True)
    function = cgutils.get_or_insert_function(b.module, kind, "syscall")
    b.call(function, [const(I64, _FUTEX), address, const(I64, what), b.sext(value, I64), *(const(I64, 0),) * 3])


@operation(types.int32)
def this_core(b):
    """Of this thread at this moment, from 1. 0 where nobody can tell, which counts as crowded."""
    if sys.platform != "linux":
        return const(I32, 0)
    kind = ir.FunctionType(I32, [])
    return b.add(b.call(cgutils.get_or_insert_function(b.module, kind, "sched_getcpu"), []), const(I32, 1))


@native
def await_change(board: int, cell: int, old: int) -> int:
    """Waits until the cell holds something else, and returns it."""
    if this_core() != read_atomic(board + CROWDED):
        for _ in range(SPINS):
            found = read_atomic(board + cell)
            if found != old:
                return found
            pause()
    add_atomic(board + SLEEPING, np.int32(1))
    found = read_atomic(board + cell)
    while found == old:
        sleep_while(board + cell, np.int32(old))
        found = read_atomic(board + cell)
    add_atomic(board + SLEEPING, np.int32(-1))
    core = this_core()
    write_atomic(board + CROWDED, core if core == read_atomic(board + LAST) else np.int32(0))
    return found


@native
def announce(board: int, cell: int, value: int) -> None:
    write_atomic(board + LAST, this_core())
    write_atomic(board + cell, np.int32(value))
    if read_atomic(board + SLEEPING) > 0:
        wake_all(board + cell)


@native
def await_order(board: int, before: int) -> int:
    """Waits until a step may be entered that is not the one before, and returns its number, or END."""
    order = read_atomic(board + ORDER)
    if order == before:
        order = await_change(board, ORDER, before)
    if order == CLOSED:
        order = await_change(board, ORDER, CLOSED)
    return order


@native
def enter(board: int, order: int) -> bool:
    """Whether the caller is in that step now; the door may have been closed. It has to leave in any case."""
    add_atomic(board + INSIDE, np.int32(1))
    return read_atomic(board + ORDER) == order


@native
def leave(board: int, cell: int) -> None:
    """cell: INSIDE or BUSY, which says one less from now on."""
    if add_atomic(board + cell, np.int32(-1)) == 1 and read_atomic(board + SLEEPING) > 0:
        write_atomic(board + LAST, this_core())
        wake_all(board + cell)


@entry
def await_empty(board: int, cell: int) -> None:
    """Waits until nobody is INSIDE, or BUSY, after the door was closed."""
    count = read_atomic(board + cell)
    while count != 0:
        count = await_change(board, cell, count)


@entry
def dismiss(board: int) -> None:
    announce(board, ORDER, END)


class Team:
    """`threads` of them, the caller included, which takes part in every step itself."""

    def __init__(self, threads: int, tickets: int, follow: Callable[[int, int, int], None]) -> None:
        """`follow(board, threads, which)` obeys every ORDER until END; compiled, so that it holds no lock."""
        cells = TICKETS + CELL * tickets
        self._memory = np.zeros(cells // 4 + CELL // 4, np.int32)
        self.board = -(-self._memory.ctypes.data // CELL) * CELL
        self.threads = threads
        self._workers = [
            # Each holds the team, whose memory it looks at: also where nobody else does and nobody closed it.
            threading.Thread(
                target=lambda own: follow(self.board, threads, own), args=(which,), name=f"hamdam-step-{which}",
                daemon=True,
            )
            for which in range(1, threads)
        ]
        for worker in self._workers:
            worker.start()

    def close(self) -> None:
        """Ends the threads. Idempotent."""
        dismiss(self.board)
        for worker in self._workers:
            worker.join()
        self._workers = []
