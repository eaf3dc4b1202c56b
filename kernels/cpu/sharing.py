"""Sharing: how the threads of a team share out one phase of a step, by tickets. It knows no step.

Who is held up leaves more to the others; what is computed of a piece does not depend on who takes it.
"""
import numpy as np

from .native import native
from .product import panel_bytes, product
from .team import CELL, TICKETS, add_atomic, meet
from .tiles import PANEL

SHARES = 8  # pieces a thread may take of a matrix


@native
def take(board: int, phase: int) -> int:
    """The next piece of this phase that nobody has."""
    return add_atomic(board + TICKETS + CELL * phase, np.int32(1))


@native
def next_row(board: int, threads: int, phase: int, before: int) -> int:
    """The next of a phase's rows, the first one after -1. A thread that shares none with others takes all of them."""
    return take(board, phase) if threads > 1 else before + 1


@native
def first_piece(matrix: int, bits: int, outputs: int, width: int, threads: int, which: int) -> int:
    """The address of the weights that a thread multiplies first: nobody else takes them, so they can be asked for."""
    return matrix + which * panels_of_piece(outputs, threads) * panel_bytes(width, bits)


@native
def panels_of_piece(outputs: int, threads: int) -> int:
    return max(1, (outputs + PANEL - 1) // PANEL // (threads * SHARES))


@native
def share_product(
    board: int, threads: int, which: int, phase: int, matrix: int, bits: int, outputs: int, width: int, x: int,
    tokens: int, bias: int, mode: int, out: int, out_bytes: int, scratch: int, then: int,
) -> None:
    """then: the weights that this thread multiplies in the phase after this one."""
    panels, piece, size = (outputs + PANEL - 1) // PANEL, panels_of_piece(outputs, threads), panel_bytes(width, bits)
    first = which * piece
    while first < panels:
        following = (threads + take(board, phase)) * piece
        product(matrix, bits, first, min(first + piece, panels), width, x, tokens, bias, mode, out, out_bytes,
                scratch, matrix + following * size if following < panels else then)
        first = following
    meet(board, threads)
