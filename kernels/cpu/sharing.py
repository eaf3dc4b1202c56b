"""Sharing: how the threads of a team share out one phase of a step, and when it is over. It knows no step.

Who is held up leaves more to the others; what is computed of a piece does not depend on who takes it. A phase is over
when its pieces are done, not when everybody has come: a thread that was put to sleep holds up no more than the piece
it has, and finds nothing left in the phases that it missed. A phase's cell on the board holds
  NEXT      the next piece that nobody has asked for
  DONE      how many pieces are done; everybody adds its own when nothing is left
"""
import numpy as np

from .lanes import splat, store
from .native import everywhere, native
from .plan import BIAS, BITS, INPUTS, MATRIX, OUTPUTS
from .product import panel_bytes, product
from .team import (
    CELL,
    LAST,
    SLEEPING,
    TICKETS,
    add_atomic,
    await_change,
    read_atomic,
    this_core,
    wake_all,
    write_atomic,
)  # fmt: skip
from .tiles import PANEL

NEXT, DONE = 0, 4
SHARES = 8  # pieces a thread may take of a matrix
_ZERO = np.float32(0.0)


@native
def clear(board: int, phases: int) -> None:
    """Before a step, while nobody is in it."""
    for phase in range(phases):
        store(board + TICKETS + CELL * phase, splat(_ZERO))


@native
def take(board: int, phase: int) -> int:
    """The next piece of this phase that nobody has."""
    return add_atomic(board + TICKETS + CELL * phase + NEXT, np.int32(1))


@native
def next_row(board: int, threads: int, phase: int, before: int) -> int:
    """The next of a phase's rows, the first one after -1. A thread that shares none with others takes all of them."""
    return take(board, phase) if threads > 1 else before + 1


@native
def finish(board: int, threads: int, phase: int, mine: int, pieces: int) -> None:
    """Returns when all pieces of a phase are done, `mine` by the caller; what was written of them is seen from now on.
    Who shares with nobody waits for nobody."""
    if threads == 1:
        return
    cell = TICKETS + CELL * phase + DONE
    done = add_atomic(board + cell, np.int32(mine)) + mine
    if done == pieces and mine > 0:
        write_atomic(board + LAST, this_core())
        if read_atomic(board + SLEEPING) > 0:
            wake_all(board + cell)
    while done != pieces:
        done = await_change(board, cell, done)


@everywhere
def panels_of_piece(outputs: int, threads: int) -> int:
    """So many that there are fewer than 2 * SHARES pieces for each thread."""
    return max(1, (outputs + PANEL - 1) // PANEL // (threads * SHARES))


@native
def share_product(
    products: np.ndarray, index: int, board: int, threads: int, phase: int, x: int, tokens: int, mode: int, out: int,
    out_bytes: int, scratch: int,
) -> None:
    """One of the plan's products, for all tokens; as product.py says. A thread takes its next ticket before it
    multiplies what the last one stands for, so that those weights can be asked for."""
    matrix, bits, outputs, inputs = (
        products[index, MATRIX], products[index, BITS], products[index, OUTPUTS], products[index, INPUTS],
    )
    panels, size, bytes = (outputs + PANEL - 1) // PANEL, panels_of_piece(outputs, threads), panel_bytes(inputs, bits)
    pieces, mine = (panels + size - 1) // size, 0
    piece = take(board, phase)
    while piece < pieces:
        following = take(board, phase)
        then = matrix + following * size * bytes if following < pieces else products[index + 1, MATRIX]
        product(matrix, bits, piece * size, min((piece + 1) * size, panels), inputs, x, tokens, products[index, BIAS],
                mode, out, out_bytes, scratch, then)
        piece, mine = following, mine + 1
    finish(board, threads, phase, mine, pieces)
