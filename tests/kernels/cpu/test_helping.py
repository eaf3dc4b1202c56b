"""helping: a product of few tokens is right and ends whoever holds a piece; who comes late changes nothing."""
import threading
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray
from packed_numbers import address, packed, quantised, random_blocks, side_by_side

from hamdam.kernels.cpu.helping import DONE, FEW, PLACING, TAKEN, do_piece, few_bytes, pieces_of, said_bytes, share_few
from hamdam.kernels.cpu.packing import Packed
from hamdam.kernels.cpu.plan import BIAS, BITS, INPUTS, MATRIX, OUTPUTS, PRODUCT_PLACES
from hamdam.kernels.cpu.product import ADD, GATE, SCRATCH, WRITE, product
from hamdam.kernels.cpu.tiles import PANEL

INPUTS_OF_ALL = 80
STEP = 7  # the number of the step in hand
MODES = pytest.mark.parametrize("mode", [WRITE, ADD, GATE])
OUTPUTS_OF = pytest.mark.parametrize("outputs", [1, 33, 320, 64 * PANEL + 1])  # the last: pieces of several panels


@dataclass
class Case:
    products: NDArray[np.int64]
    kept: tuple[Packed, NDArray[np.uint8], NDArray[np.float32]]
    mode: int
    threads: int
    said: NDArray[np.int64]
    base: NDArray[np.float32]  # what stood there before
    right: NDArray[np.float32]

    @property
    def pieces(self) -> int:
        return int(pieces_of(self.products, 0, self.threads))

    def share(self, out: NDArray[np.float32], which: int = 0, number: int = STEP) -> None:
        _, x, _ = self.kept
        scratch = np.full(few_bytes(int(self.products[0, OUTPUTS]), self.threads), 0xFF, np.uint8)
        share_few(self.products, 0, address(self.said), number, self.threads, which, address(x), len(x), self.mode,
                  address(out), out.strides[0], address(scratch))

    def do(self, out: NDArray[np.float32], piece: int, number: int) -> None:
        _, x, _ = self.kept
        scratch = np.full(few_bytes(int(self.products[0, OUTPUTS]), self.threads), 0xFF, np.uint8)
        do_piece(self.products, 0, address(self.said), number, self.threads, piece, address(x), len(x), self.mode,
                 address(out), out.strides[0], address(scratch), 0)

    def of_piece(self, piece: int) -> slice:
        """Its columns of the result."""
        panels = -(-int(self.products[0, OUTPUTS]) // PANEL)
        size = -(-panels // self.pieces)
        each = PANEL // 2 if self.mode == GATE else PANEL
        return slice(piece * size * each, (piece + 1) * size * each)


def case(mode: int, outputs: int = 320, *, tokens: int = 3, threads: int = 2, bits: int = 4) -> Case:
    random = np.random.default_rng(outputs + tokens)
    if mode == GATE:
        outputs = max(PANEL, outputs // PANEL * PANEL)
        halves = [random_blocks(random, outputs // 2, INPUTS_OF_ALL, bits) for _ in range(2)]
        matrix = packed(side_by_side(*halves), INPUTS_OF_ALL)
    else:
        matrix = packed(random_blocks(random, outputs, INPUTS_OF_ALL, bits), INPUTS_OF_ALL)
    x = quantised(random.standard_normal((tokens, INPUTS_OF_ALL)).astype(np.float32), 3.0)
    panels = -(-outputs // PANEL)
    bias = random.standard_normal(panels * PANEL).astype(np.float32)
    products = np.zeros((2, PRODUCT_PLACES), np.int64)
    for row in products:
        row[[MATRIX, BITS, OUTPUTS, INPUTS]] = address(matrix.data), bits, outputs, INPUTS_OF_ALL
    if mode != GATE:
        products[0, BIAS] = address(bias)
    width = panels * (PANEL // 2 if mode == GATE else PANEL)
    base = random.standard_normal((tokens, width)).astype(np.float32)
    right, scratch = base.copy(), np.zeros(SCRATCH, np.uint8)
    product(address(matrix.data), bits, 0, panels, INPUTS_OF_ALL, address(x), tokens, int(products[0, BIAS]), mode,
            address(right), right.strides[0], address(scratch), 0)
    said = np.full(said_bytes(threads) // 8, 4 * (STEP - 1) + DONE)  # as the step before left it
    return Case(products, (matrix, x, bias), mode, threads, said, base, right)


@MODES
@OUTPUTS_OF
@pytest.mark.parametrize("tokens", range(1, FEW + 1))
@pytest.mark.parametrize("threads", [2, 3, 40])
def test_a_product_shared_out_among_few_tokens_is_the_same_to_the_bit(
    mode: int, outputs: int, tokens: int, threads: int
) -> None:
    for bits in (4, 8):
        own = case(mode, outputs, tokens=tokens, threads=threads, bits=bits)
        for which in (0, threads - 1):  # alone: no other ever comes
            own.said[:] = 4 * (STEP - 1) + DONE
            out = own.base.copy()
            own.share(out, which)
            assert out.tobytes() == own.right.tobytes()
            assert 1 <= own.pieces <= len(own.said)
            assert set(own.said[: own.pieces]) == {4 * STEP + DONE}
            assert set(own.said[own.pieces :]) <= {4 * (STEP - 1) + DONE}


@MODES
def test_what_others_took_and_did_not_do_is_done_again(mode: int) -> None:
    own = case(mode)
    for seed in range(8):
        taken = np.random.default_rng(seed).random(len(own.said)) < 0.5
        own.said[:] = np.where(taken, 4 * STEP + TAKEN, 4 * (STEP - 1) + DONE)
        out = own.base.copy()
        own.share(out, seed % 2)
        assert out.tobytes() == own.right.tobytes()


@MODES
def test_what_is_done_is_not_done_twice(mode: int) -> None:
    own = case(mode)
    for seed in range(8):
        done = np.random.default_rng(seed).random(own.pieces) < 0.5
        own.said[: own.pieces] = np.where(done, 4 * STEP + DONE, 4 * (STEP - 1) + DONE)
        out, right = own.base.copy(), own.right.copy()
        for piece in np.flatnonzero(done):
            right[:, own.of_piece(piece)] = own.base[:, own.of_piece(piece)]
        own.share(out)
        assert out.tobytes() == right.tobytes()


@MODES
@pytest.mark.parametrize("later", [STEP, STEP + 1])
def test_a_thread_that_comes_late_throws_its_own_away(mode: int, later: int) -> None:
    own = case(mode)
    own.said[:] = 4 * later + DONE
    before, out = own.said.copy(), own.base.copy()
    own.kept[1][:] = np.random.default_rng(0).integers(0, 256, own.kept[1].shape)  # its rows became others
    own.share(out)
    for piece in range(own.pieces):
        own.do(out, piece, STEP)
    assert out.tobytes() == own.base.tobytes()
    assert np.array_equal(own.said, before)


def test_who_finds_a_result_just_being_put_in_place_waits_until_it_is_there() -> None:
    own = case(ADD)
    own.said[2] = 4 * STEP + PLACING
    out, order = own.base.copy(), []

    def share() -> None:
        own.share(out)
        order.append("over")

    thread = threading.Thread(target=share)
    thread.start()
    while own.said[own.pieces - 1] != 4 * STEP + DONE:  # until it has done all the others
        thread.join(0.001)
    order.append("placed")
    own.said[2] = 4 * STEP + DONE
    thread.join()
    assert order == ["placed", "over"]
    assert out[:, own.of_piece(2)].tobytes() == own.base[:, own.of_piece(2)].tobytes()


def test_however_many_threads_help_each_other_every_piece_is_added_once() -> None:
    threads = 6  # on fewer cores: they are put to sleep in the midst of it
    own = case(ADD, 64 * PANEL, threads=threads)
    for number in range(STEP, STEP + 60):
        out = own.base.copy()
        team = [threading.Thread(target=own.share, args=(out, which, number)) for which in range(threads)]
        for one in team:
            one.start()
        for one in team:
            one.join()
        assert out.tobytes() == own.right.tobytes()


def test_threads_of_steps_before_disturb_nobody_while_rows_become_others() -> None:
    own, random = case(ADD, 64 * PANEL), np.random.default_rng(1)
    x, late, stop = own.kept[1].copy(), own.base.copy(), threading.Event()

    def come_late() -> None:
        number = STEP
        while not stop.is_set():
            own.share(late, 1, number)
            for piece in range(own.pieces):
                own.do(late, piece, number)

    own.share(own.base.copy(), 0, STEP)
    thread = threading.Thread(target=come_late)
    thread.start()
    for number in range(STEP + 1, STEP + 40):
        out = own.base.copy()
        own.share(out, 0, number)
        assert out.tobytes() == own.right.tobytes()
        own.kept[1][:] = random.integers(0, 256, x.shape)
        own.kept[1][:] = x
    stop.set()
    thread.join()
    assert late.tobytes() == own.base.tobytes()
