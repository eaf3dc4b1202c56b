"""Helping: how the threads of a team share out a product of few tokens, none of whose pieces is waited for. No step.

A step of few tokens is shorter than a time slice: a thread that was put to sleep would hold up the others for longer
than the whole of it takes. So who finds a piece taken but not done in good time helps, and multiplies it again. The
first one to be ready puts its result in place, any other throws its own away. A late one's may be wrong: rows become
others only after all pieces of their product are done, so whoever read such rows comes late. Threads but the first even
stand outside while they multiply (team.py): they look at nothing but weights, rows, their own scratch, and what was
said of each piece, and the others go on, to the next step if need be.

What is said of a piece is an int64 that only grows, four numbers for each step: what a late thread says of a step
before is not heard.
"""
import numpy as np

from .lanes import add, load, store
from .native import everywhere, native
from .plan import BIAS, BITS, INPUTS, MATRIX, NUMBER, OUTPUTS, SAID, SCRATCH, SCRATCH_BYTES
from .product import ADD, GATE, WRITE, panel_bytes, product
from .product import SCRATCH as TILE_SCRATCH
from .sharing import SHARES, panels_of_piece, share_product
from .team import INSIDE, enter, give_way, leave, pause, raise_atomic, read_long, write_long
from .tiles import PANEL

FEW = 4  # tokens at most; longer steps gained nothing by it
PATIENCE = 2000  # looks at a piece that another has before it is done again, some 50 us; and besides
BYTES_A_LOOK = 50  # as many as a piece's weights would take that are read at 2 GB/s: its owner may just be busy with it
TAKEN, PLACING, DONE = 1, 2, 3


@native
def multiply(
    plan: np.ndarray, products: np.ndarray, index: int, board: int, order: int, threads: int, which: int, phase: int,
    x: int, tokens: int, mode: int, out: int, out_bytes: int,
) -> bool:
    """One of the plan's products, for all tokens; as product.py says. False where the step was over before the caller,
    who stood outside, could enter it again: then it has nothing to look at any more. Nor has it in the plan outside."""
    scratch = plan[SCRATCH] + which * plan[SCRATCH_BYTES]
    if tokens > FEW or threads == 1:
        share_product(products, index, board, threads, phase, x, tokens, mode, out, out_bytes, scratch)
        return True
    said, number = plan[SAID] + said_bytes(threads) * index, plan[NUMBER]
    if which > 0:
        leave(board, INSIDE)
    share_few(products, index, said, number, threads, which, x, tokens, mode, out, out_bytes, scratch)
    return which == 0 or enter(board, order)


@native
def share_few(
    products: np.ndarray, index: int, said: int, number: int, threads: int, which: int, x: int, tokens: int, mode: int,
    out: int, out_bytes: int, scratch: int,
) -> None:
    """said: of each piece, what is said of it. number: the step's, which no step had before. Returns when all of them
    are done; what was written of them is seen from now on."""
    pieces, taken, done = pieces_of(products, index, threads), 4 * number + TAKEN, 4 * number + DONE
    first, until = first_of(pieces, threads, which), first_of(pieces, threads, which + 1)
    there = weights_of(products, index + 1, first_of(pieces_of(products, index + 1, threads), threads, which), threads)
    for turn in range(pieces):
        piece = (first + turn) % pieces
        if read_long(said + 8 * piece) < taken and raise_atomic(said + 8 * piece, taken) < taken:
            then = weights_of(products, index, piece + 1, threads) if piece + 1 != until else there
            do_piece(products, index, said, number, threads, piece, x, tokens, mode, out, out_bytes, scratch, then)
    weights = weights_of(products, index, 1, threads) - weights_of(products, index, 0, threads)  # bytes of a piece
    patience = PATIENCE + weights // BYTES_A_LOOK
    for piece in range(pieces):
        looks = 0
        while read_long(said + 8 * piece) < done:
            looks += 1
            if looks < patience:
                pause()
            elif read_long(said + 8 * piece) == taken:
                do_piece(products, index, said, number, threads, piece, x, tokens, mode, out, out_bytes, scratch, there)
            else:
                give_way()


@native
def do_piece(
    products: np.ndarray, index: int, said: int, number: int, threads: int, piece: int, x: int, tokens: int, mode: int,
    out: int, out_bytes: int, scratch: int, then: int,
) -> None:
    """Multiplies a piece in the caller's scratch, and puts it in place unless another did. then: as product.py says."""
    matrix, outputs = weights_of(products, index, piece, threads), products[index, OUTPUTS]
    size = panels_of_piece(outputs, threads)
    start, each = piece * size, PANEL * (2 if mode == GATE else 4)  # bytes of a panel's results
    panels, found = min(size, (outputs + PANEL - 1) // PANEL - start), scratch + TILE_SCRATCH
    bias = products[index, BIAS] + 4 * PANEL * start if products[index, BIAS] != 0 else 0
    product(matrix, products[index, BITS], 0, panels, products[index, INPUTS], x, tokens, bias,
            GATE if mode == GATE else WRITE, found, size * each, scratch, then)
    placing = 4 * number + PLACING
    if raise_atomic(said + 8 * piece, placing) >= placing:
        return
    for token in range(tokens):
        source, target = found + token * size * each, out + token * out_bytes + start * each
        for i in range(0, panels * each, 64):
            store(target + i, add(load(source + i), load(target + i)) if mode == ADD else load(source + i))
    write_long(said + 8 * piece, 4 * number + DONE)


@native
def pieces_of(products: np.ndarray, index: int, threads: int) -> int:
    size = panels_of_piece(products[index, OUTPUTS], threads)
    return int(((products[index, OUTPUTS] + PANEL - 1) // PANEL + size - 1) // size)


@native
def first_of(pieces: int, threads: int, which: int) -> int:
    """The piece that a thread begins with; it goes on with those behind it, up to the next one's first, and helps."""
    return which * pieces // threads


@native
def weights_of(products: np.ndarray, index: int, piece: int, threads: int) -> int:
    """The address where a piece's weights begin."""
    size = panels_of_piece(products[index, OUTPUTS], threads)
    return int(products[index, MATRIX] + piece * size * panel_bytes(products[index, INPUTS], products[index, BITS]))


@everywhere
def said_bytes(threads: int) -> int:
    """Of what is said of a product's pieces."""
    return 8 * 2 * threads * SHARES


@everywhere
def few_bytes(outputs: int, threads: int) -> int:
    """Of the scratch that a thread needs for a product with so many outputs."""
    return TILE_SCRATCH + FEW * panels_of_piece(outputs, threads) * PANEL * 4
