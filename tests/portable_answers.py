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
from hamdam.kernels.cpu.tiles import GROUP, PANEL, SETS, low_tile, matrix_tile

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
    for bits in (8, 4):
        tile, lows = matrix_tile(TOKENS, bits), low_tile(bits)

        @njit
        def run(  # type: ignore[no-untyped-def]
            panel: int, x: int, row: int, out: int, more: int, tile=tile, lows=lows
        ) -> None:
            tile(panel, groups, x, row, 0, out)
            for token in range(TOKENS):
                store(more + 4 * PANEL * token, load(out + 4 * PANEL * token))
                store(more + 4 * PANEL * token + 64, load(out + 4 * PANEL * token + 64))
                lows(panel, groups, x + token * row, more + 4 * PANEL * token)

        blocks = random_blocks(random, PANEL, INPUTS, bits)
        rows = quantised(random.standard_normal((TOKENS, INPUTS)).astype(np.float32), 0.0)
        for kind in ("random", "largest"):
            if kind == "largest":  # of what bytes hold: no sum on the way may be cut off
                blocks.numbers[:] = 0xFF
                for first in (0, SETS * groups + 8):  # high and low bytes
                    rows[:, first : first + GROUP * groups] = np.array([[127], [-128], [-127]], np.int8).view(np.uint8)
            matrix = packed(blocks, INPUTS)
            high, both = np.zeros((2, TOKENS, PANEL), np.float32)
            run(address(matrix.data), address(rows), rows.shape[1], address(high), address(both))
            found |= {f"{kind} tile of {bits} bits, high bytes": high, f"{kind} tile of {bits} bits": both}
    x = np.linspace(-90, 90, 16).astype(np.float32)
    raised, dotted = np.zeros((2, 16), np.float32)
    exponential(address(x), address(raised))
    left, right = (random.standard_normal((2, 32)).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    pairs(address(left), address(right), address(dotted))
    return found | {"exp": raised, "pairs": dotted}


if __name__ == "__main__":
    np.savez(sys.argv[1], **answers())
