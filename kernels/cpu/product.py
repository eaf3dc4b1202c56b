"""Product: rows of whole numbers times a packed matrix, and what is done to the result before it is written. No step.

out may be the rows themselves, what is added to the residual stream, or silu(gate) * up, for which packing.py lays 16
gates and their 16 ups side by side.
"""
from typing import Any

import numpy as np

from .lanes import WIDTH, add, load, peek_byte, peek_half, peek_long, poke_float, store
from .native import native
from .rows import gate, row_bytes
from .tiles import GROUP, GROUP_BYTES, PANEL, SETS, low_tile, matrix_tile

WRITE, ADD, GATE = 0, 1, 2  # what becomes of a result
TILE = 4  # tokens at most: their sums and what they are made of fill the registers
SCRATCH = TILE * PANEL * 4


def _tile_of(bits: int) -> Any:
    one, two, three, four = (matrix_tile(tokens, bits) for tokens in range(1, TILE + 1))
    lows = low_tile(bits)

    @native
    def tile(tokens: int, panel: int, groups: int, x: int, row: int, following: int, out: int) -> None:
        if tokens == 1:
            one(panel, groups, x, row, following, out)
        elif tokens == 2:
            two(panel, groups, x, row, following, out)
        elif tokens == 3:
            three(panel, groups, x, row, following, out)
        else:
            four(panel, groups, x, row, following, out)
        for token in range(tokens):
            if groups > 64 or peek_long(x + token * row + SETS * groups) != 0:
                lows(panel, groups, x + token * row, out + token * 4 * PANEL)

    return tile


_tile_4, _tile_8 = _tile_of(4), _tile_of(8)
_GROUP_BYTES_4, _GROUP_BYTES_8 = GROUP_BYTES[4], GROUP_BYTES[8]


@native
def tokens_of_tile(left: int) -> int:
    """How many tokens the next tile takes of those that are left: as even as can be, as few tiles as can be."""
    tiles = (left + TILE - 1) // TILE
    return (left + tiles - 1) // tiles


@native
def panel_bytes(width: int, bits: int) -> int:
    """Of 32 outputs with so many inputs."""
    return (width + GROUP - 1) // GROUP * (_GROUP_BYTES_4 if bits == 4 else _GROUP_BYTES_8)


@native
def product(
    panels: int, bits: int, first: int, end: int, width: int, x: int, tokens: int, bias: int, mode: int, out: int,
    out_bytes: int, scratch: int, then: int,
) -> None:
    """Panels `first` up to `end` of a matrix with `width` inputs, for all tokens.

    x: the tokens' rows, as rows.quantise makes them. bias: float32 an output, or 0. out: float32, `out_bytes` from one
    token to the next. then: the panel that this thread multiplies afterwards.
    """
    groups, row, size = (width + GROUP - 1) // GROUP, row_bytes(width), panel_bytes(width, bits)
    for panel in range(first, end):
        weights = panels + panel * size
        token, following = 0, weights + size if panel + 1 < end else then
        while token < tokens:
            count = tokens_of_tile(tokens - token)
            if bits == 4:
                _tile_4(count, weights, groups, x + token * row, row, following, scratch)
            else:
                _tile_8(count, weights, groups, x + token * row, row, following, scratch)
            for one in range(count):
                _finish(scratch + one * 4 * PANEL, panel, bias, mode, out + (token + one) * out_bytes)
            token += count


@native
def _finish(found: int, panel: int, bias: int, mode: int, out: int) -> None:
    left, right = load(found), load(found + 4 * WIDTH)
    if bias != 0:
        left = add(left, load(bias + panel * 4 * PANEL))
        right = add(right, load(bias + panel * 4 * PANEL + 4 * WIDTH))
    if mode == GATE:
        store(found, left)
        store(found + 4 * WIDTH, right)
        gate(found, found + 4 * WIDTH, out + panel * 4 * WIDTH)
        return
    to = out + panel * 4 * PANEL
    if mode == ADD:
        left, right = add(left, load(to)), add(right, load(to + 4 * WIDTH))
    store(to, left)
    store(to + 4 * WIDTH, right)


@native
def read_row(panels: int, bits: int, width: int, row: int, out: int) -> None:
    """One output's weights as float32: the embedding of an id, where the head is the embedding too."""
    panel, size, lane = panels + row // PANEL * panel_bytes(width, bits), panel_bytes(GROUP, bits), row % PANEL
    for group in range((width + GROUP - 1) // GROUP):
        block = panel + group * size
        if bits == 8:
            scale = peek_half(block + 1024 + 2 * lane)
            for i in range(GROUP):
                at = block + 64 * (8 * (lane // WIDTH) + i // 4) + 4 * (lane % WIDTH) + i % 4
                poke_float(out + 4 * (group * GROUP + i), np.float32(peek_byte(at) - 128) * scale)
        else:
            scale, least = peek_half(block + 512 + 2 * lane), peek_half(block + 576 + 2 * lane)
            for i in range(GROUP // 2):
                both = peek_byte(block + 64 * (4 * (lane // WIDTH) + i // 4) + 4 * (lane % WIDTH) + i % 4)
                poke_float(out + 4 * (group * GROUP + i), np.float32(both & 15) * scale + least)
                poke_float(out + 4 * (group * GROUP + GROUP // 2 + i), np.float32(both >> 4) * scale + least)
