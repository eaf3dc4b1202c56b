"""Product: rows of whole numbers times a packed matrix, and what is done to the result before it is written. No step.

out may be the rows themselves, what is added to the residual stream, or silu(gate) * up, for which packing.py lays 16
gates and their 16 ups side by side.
"""
from typing import Any

import numpy as np

from .lanes import WIDTH, add, load, mul, peek_byte, peek_float, peek_half, poke_float, splat, store
from .native import native
from .rows import gate
from .tiles import GROUP, PANEL, matrix_tile

WRITE, ADD, GATE = 0, 1, 2  # what becomes of a result
TILE = 3  # tokens at most; larger ones, which read weights less often, were slower in whole steps
SCRATCH = TILE * PANEL * 4



def _tile_of(bits: int, passes: int) -> Any:
    one, two, three = (matrix_tile(tokens, bits, passes) for tokens in range(1, TILE + 1))

    @native
    def tile(tokens: int, panel: int, groups: int, x: int, facts: int, row: int, out: int) -> None:
        if tokens == 1:
            one(panel, groups, x, facts, row, row, out)
        elif tokens == 2:
            two(panel, groups, x, facts, row, row, out)
        else:
            three(panel, groups, x, facts, row, row, out)

    return tile


_tile_4_1, _tile_8_1, _tile_4_2, _tile_8_2 = _tile_of(4, 1), _tile_of(8, 1), _tile_of(4, 2), _tile_of(8, 2)


@native
def tokens_of_tile(left: int) -> int:
    """How many tokens the next tile takes of those that are left: as even as can be, as few tiles as can be."""
    tiles = (left + TILE - 1) // TILE
    return (left + tiles - 1) // tiles


@native
def product(
    panels: int, bits: int, passes: int, first: int, end: int, width: int, x: int, tokens: int, bias: int, mode: int,
    out: int, out_bytes: int, scratch: int,
) -> None:
    """Panels `first` up to `end` of a matrix with `width` inputs, for all tokens.

    x: the tokens' bytes, each token's facts behind its bytes (row_bytes of rows that quantise made). bias: float32 an
    output, or 0. out: float32, `out_bytes` from one token to the next.
    """
    groups = (width + GROUP - 1) // GROUP
    facts, row = GROUP * groups * passes, row_bytes(width, passes)
    panel_bytes = groups * (640 if bits == 4 else 1088)
    for panel in range(first, end):
        weights = panels + panel * panel_bytes
        token = 0
        while token < tokens:
            count = tokens_of_tile(tokens - token)
            here = x + token * row
            if passes == 1:
                if bits == 4:
                    _tile_4_1(count, weights, groups, here, here + facts, row, scratch)
                else:
                    _tile_8_1(count, weights, groups, here, here + facts, row, scratch)
            elif bits == 4:
                _tile_4_2(count, weights, groups, here, here + facts, row, scratch)
            else:
                _tile_8_2(count, weights, groups, here, here + facts, row, scratch)
            for one in range(count):
                scale = np.float32(1.0)
                if passes == 2:
                    scale = peek_float(here + one * row + facts + 8 * groups)
                to = out + (token + one) * out_bytes
                _finish(scratch + one * 4 * PANEL, scale, panel, bias, mode, to)
            token += count


@native
def row_bytes(width: int, passes: int) -> int:
    """Of one token's bytes and facts, a multiple of 64."""
    groups = (width + GROUP - 1) // GROUP
    return (GROUP * groups * passes + 12 * groups + 63) // 64 * 64


@native
def _finish(found: int, scale: float, panel: int, bias: int, mode: int, out: int) -> None:
    factor = splat(np.float32(scale))
    left, right = mul(load(found), factor), mul(load(found + 4 * WIDTH), factor)
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
    groups = (width + GROUP - 1) // GROUP
    size = 640 if bits == 4 else 1088
    lane = row % PANEL
    for group in range(groups):
        block = panels + ((row // PANEL) * groups + group) * size
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
