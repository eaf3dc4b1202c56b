"""Sharing: how the threads of a team share out one phase of a step, and when it is over. It knows no step.

Who is held up leaves more to the others; what is computed of a piece does not depend on who takes it. A phase is over
when its pieces are done, not when everybody has come: a thread that was put to sleep holds up no more than the piece
it has, and finds nothing left in the phases that it missed. A phase's cell on the board holds
  NEXT      the next piece that nobody has asked for
  DONE      how many pieces are done; everybody adds its own when nothing is left
  CLAIMED   a bit for each thread's first piece of a matrix, from here to the end of the cell
"""
import numpy as np

from .lanes import splat, store
from .native import native
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
    set_atomic,
    this_core,
    wake_all,
    write_atomic,
)  # fmt: skip
from .tiles import PANEL

NEXT, DONE, CLAIMED = 0, 4, 8
MOST_THREADS = 8 * (CELL - CLAIMED)
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
def claim(board: int, phase: int, which: int) -> bool:
    """Whether the caller has that thread's first piece now, which it or another may claim."""
    word, bit = board + TICKETS + CELL * phase + CLAIMED + which // 32 * 4, np.int32(1 << which % 32)
    return set_atomic(word, bit) & bit == 0


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


@native
def first_piece(products: np.ndarray, number: int, threads: int, which: int) -> int:
    """The address of the weights that a thread multiplies first, unless it comes late: so they can be asked for."""
    matrix, bits, outputs, inputs = (
        products[number, MATRIX], products[number, BITS], products[number, OUTPUTS], products[number, INPUTS],
    )
    return matrix + which * panels_of_piece(outputs, threads) * panel_bytes(inputs, bits)


@native
def panels_of_piece(outputs: int, threads: int) -> int:
    return max(1, (outputs + PANEL - 1) // PANEL // (threads * SHARES))


@native
def next_piece(board: int, threads: int, phase: int, pieces: int) -> int:
    """After the first ones come the others by ticket, and at last the first pieces of threads that have not come."""
    piece = threads + take(board, phase)
    if piece < pieces:
        return piece
    for which in range(min(threads, pieces)):
        if claim(board, phase, which):
            return which
    return pieces


@native
def share_product(
    products: np.ndarray, number: int, board: int, threads: int, which: int, phase: int, x: int, tokens: int, mode: int,
    out: int, out_bytes: int, scratch: int,
) -> None:
    """One of the plan's products, for all tokens; as product.py says. The next one's first weights are asked for."""
    matrix, bits, outputs, inputs = (
        products[number, MATRIX], products[number, BITS], products[number, OUTPUTS], products[number, INPUTS],
    )
    then = first_piece(products, number + 1, threads, which)
    panels, size, bytes = (outputs + PANEL - 1) // PANEL, panels_of_piece(outputs, threads), panel_bytes(inputs, bits)
    pieces, mine = (panels + size - 1) // size, 0
    piece = which
    if which >= pieces or not claim(board, phase, which):
        piece = next_piece(board, threads, phase, pieces)
    while piece < pieces:
        following = next_piece(board, threads, phase, pieces)
        product(matrix, bits, piece * size, min((piece + 1) * size, panels), inputs, x, tokens, products[number, BIAS],
                mode, out, out_bytes, scratch, matrix + following * size * bytes if following < pieces else then)
        piece, mine = following, mine + 1
    finish(board, threads, phase, mine, pieces)
