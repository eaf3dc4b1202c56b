"""PortableAnswers: what the innermost loops of the CPU path answer, on the processor that numba is told of. Not a test.

    python tests/portable_answers.py FILE.npz
"""
import sys

import conftest  # noqa: F401  # hamdam may stand beside this folder and not be installed
import numpy as np
from numba import njit
from numpy.typing import NDArray
from packed_numbers import address, packed, quantised, random_blocks

from hamdam.kernels.cpu import sums
from hamdam.kernels.cpu.lanes import exp, load, load_ints, store
from hamdam.kernels.cpu.tiles import GROUP, PANEL, matrix_tile

INPUTS, TOKENS = 80, 3


@njit
def exponential(x: int, out: int) -> None:
    store(out, exp(load(x)))


@njit
def pairs(x: int, y: int, out: int) -> None:
    store(out, sums.dot_bf16(load(out), load_ints(x), load_ints(y)))


def answers() -> dict[str, NDArray[np.generic]]:
    """By name; "instructions" says which products the processor has one for."""
    random = np.random.default_rng(0)
    found: dict[str, NDArray[np.generic]] = {"instructions": np.array([sums.HAS_INT8_DOT, sums.HAS_BF16_DOT])}
    groups = -(-INPUTS // GROUP)
    for bits, passes in ((8, 2), (4, 1)):
        tile = matrix_tile(TOKENS, bits, passes)

        @njit
        def run(panel: int, x: int, facts: int, row: int, out: int, tile=tile) -> None:  # type: ignore[no-untyped-def]
            tile(panel, groups, x, facts, row, row, out)

        matrix = packed(random_blocks(random, PANEL, INPUTS, bits), INPUTS)
        rows = quantised(random.standard_normal((TOKENS, INPUTS)).astype(np.float32), passes)
        out = np.zeros((TOKENS, PANEL), np.float32)
        run(address(matrix.data), address(rows), address(rows) + GROUP * groups * passes, rows.shape[1], address(out))
        found[f"tile {bits} {passes}"] = out
    x = np.linspace(-90, 90, 16).astype(np.float32)
    raised, dotted = np.zeros((2, 16), np.float32)
    exponential(address(x), address(raised))
    left, right = (random.standard_normal((2, 32)).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    pairs(address(left), address(right), address(dotted))
    return found | {"exp": raised, "pairs": dotted}


if __name__ == "__main__":
    np.savez(sys.argv[1], **answers())
