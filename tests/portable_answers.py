"""PortableAnswers: what the innermost loops of the CPU path answer, on the processor that numba is told of. Not a test.

    python tests/portable_answers.py FILE.npz
"""
import sys

import conftest  # noqa: F401  # hamdam may stand beside this folder and not be installed
import numpy as np
from numba import njit
from numpy.typing import NDArray
from packed_numbers import address, packed, quantised, random_blocks

from hamdam.kernels.cpu import processor, sums
from hamdam.kernels.cpu.lanes import exp, load, load_ints, store
from hamdam.kernels.cpu.tiles import GROUP, PANEL, matrix_tile

INPUTS, TOKENS = 80, 3
INSTRUCTIONS = ("HAS_INT8_DOT", "HAS_BF16_DOT", "HAS_SHORT_SUMS")


@njit
def exponential(x: int, out: int) -> None:
    store(out, exp(load(x)))


@njit
def pairs(x: int, y: int, out: int) -> None:
    store(out, sums.dot_bf16(load(out), load_ints(x), load_ints(y)))


def answers() -> dict[str, NDArray[np.generic]]:
    """By name; "instructions" says which products the processor has one for."""
    random = np.random.default_rng(0)
    known = np.array([getattr(processor, name) for name in INSTRUCTIONS])
    found: dict[str, NDArray[np.generic]] = {"instructions": known}
    groups = -(-INPUTS // GROUP)
    for bits, passes in ((8, 2), (8, 1), (4, 1), (4, 2)):
        tile = matrix_tile(TOKENS, bits, passes)

        @njit
        def run(panel: int, x: int, facts: int, row: int, out: int, tile=tile) -> None:  # type: ignore[no-untyped-def]
            tile(panel, groups, x, facts, row, row, out)

        blocks = random_blocks(random, PANEL, INPUTS, bits)
        rows = quantised(random.standard_normal((TOKENS, INPUTS)).astype(np.float32), passes)
        for kind in ("random", "largest"):
            if kind == "largest":  # of what bytes hold: no sum on the way may be cut off
                blocks.numbers[:] = 0xFF
                rows[:, : GROUP * groups * passes] = np.array([[127], [-128], [-127]], np.int8).view(np.uint8)
            matrix = packed(blocks, INPUTS)
            out = np.zeros((TOKENS, PANEL), np.float32)
            facts = address(rows) + GROUP * groups * passes
            run(address(matrix.data), address(rows), facts, rows.shape[1], address(out))
            found[f"{kind} tile {bits} {passes}"] = out
    x = np.linspace(-90, 90, 16).astype(np.float32)
    raised, dotted = np.zeros((2, 16), np.float32)
    exponential(address(x), address(raised))
    left, right = (random.standard_normal((2, 32)).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    pairs(address(left), address(right), address(dotted))
    return found | {"exp": raised, "pairs": dotted}


if __name__ == "__main__":
    np.savez(sys.argv[1], **answers())
