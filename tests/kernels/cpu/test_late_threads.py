"""step, decoder: a step is right and ends whoever of the team is late; who walks through it later changes nothing."""
import gc
import threading
import weakref
from collections.abc import Callable

import numpy as np
import pytest
from numba import njit
from numpy.typing import NDArray
from tiny_decoder import BLOCKS, Model, decoding, logits_of, random_ids, random_model, shuffled, step_of, traces

from hamdam.kernels.cpu import decoder as module
from hamdam.kernels.cpu.decoder import Decoder
from hamdam.kernels.cpu.helping import DONE, TAKEN, multiply
from hamdam.kernels.cpu.plan import BYTES, NUMBER, SAID, STREAM
from hamdam.kernels.cpu.product import WRITE
from hamdam.kernels.cpu.step import take_step
from hamdam.kernels.cpu.team import BUSY, CLOSED, INSIDE, SLEEPING, Team, add_atomic, await_empty, enter, leave

SIZES = (70, 3, 20)
COUNTS = ((60, 1, 18), (9, 1, 1), (1, 1, 0), (0, 0, 1))  # the last is the step of one token
Follow = Callable[[int, int, int], None]


def a_model() -> Model:
    return random_model(6, layers=3, biased=True)


def all_that_is_computed(decoder: Decoder, after: Callable[[], None] = lambda: None) -> list[bytes]:
    """Of the steps above: results, logits, keys and values; `after` each step and before that is looked at."""
    table = shuffled(2, BLOCKS)
    rows = [table.row(ids, settings=(0.8, 20, 0.9, 0.01, 0.37)) for ids in random_ids(4, *SIZES)]
    found = []
    for counts in COUNTS:
        step = step_of(decoder.shape, [(row, n) for row, n in zip(rows, counts, strict=True) if n])
        drawn = decoder.step(step)
        after()
        found += [drawn.tobytes(), logits_of(decoder, len(step.sampled)).tobytes()]
    return found + [traces(decoder, row) for row in rows]


@pytest.fixture(scope="module")
def right() -> list[bytes]:
    with decoding(a_model()) as decoder:
        return all_that_is_computed(decoder)


def whose_threads(monkeypatch: pytest.MonkeyPatch, change: Callable[[Follow], Follow]) -> None:
    """From now on the threads of a team follow as `change` says."""

    class Changed(Team):
        def __init__(self, threads: int, tickets: int, follow: Follow) -> None:
            super().__init__(threads, tickets, change(follow))

    monkeypatch.setattr(module, "Team", Changed)


@pytest.mark.parametrize("threads", [2, 3, 20])
def test_a_thread_computes_every_step_alone_where_no_other_ever_comes(
    threads: int, monkeypatch: pytest.MonkeyPatch, right: list[bytes]
) -> None:
    whose_threads(monkeypatch, lambda follow: lambda *_: None)
    with decoding(a_model(), threads=threads) as decoder:
        assert all_that_is_computed(decoder) == right


def test_a_thread_that_comes_after_some_steps_takes_part_in_the_next(
    monkeypatch: pytest.MonkeyPatch, right: list[bytes]
) -> None:
    may_come, steps = threading.Event(), []

    def late(follow: Follow) -> Follow:
        return lambda *all: (may_come.wait(), follow(*all))[1]

    def after() -> None:
        steps.append(1)
        if len(steps) == 2:
            may_come.set()

    whose_threads(monkeypatch, late)
    with decoding(a_model(), threads=3) as decoder:
        assert all_that_is_computed(decoder, after) == right


def test_who_walks_through_a_step_that_is_over_finds_nothing_to_do_and_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, right: list[bytes]
) -> None:
    whose_threads(monkeypatch, lambda follow: lambda *_: None)
    with decoding(a_model(), threads=3) as decoder:
        plan, layers, products, board = decoder.plans

        def after() -> None:
            for which in (1, 2):
                walk(plan, layers, products, board, which)

        assert all_that_is_computed(decoder, after) == right


@pytest.mark.parametrize("threads", [2, 3])
def test_a_step_of_few_tokens_ends_whoever_was_put_to_sleep_with_a_piece(
    threads: int, monkeypatch: pytest.MonkeyPatch, right: list[bytes]
) -> None:
    whose_threads(monkeypatch, lambda follow: lambda *_: None)
    with decoding(a_model(), threads=threads) as decoder:
        plan, said = decoder.plans[0], decoder._kept[SAID].view(np.int64)
        random = np.random.default_rng(threads)

        def take_some() -> None:
            taken = random.random(said.shape) < 0.5
            said[taken] = 4 * (plan[NUMBER] + 1) + TAKEN

        take_some()
        assert all_that_is_computed(decoder, take_some) == right
        assert np.any(said % 4 == DONE)


def test_who_stood_outside_until_the_step_was_over_is_told_so_and_looks_at_nothing() -> None:
    with decoding(a_model(), threads=2) as decoder:
        row = shuffled(2, BLOCKS).row(random_ids(4, 2)[0])
        decoder.step(step_of(decoder.shape, [(row, 1)]))
        plan, _, products, board = decoder.plans
        await_empty(board, BUSY)
        plan[STREAM] = plan[BYTES] = 0  # nobody may look there
        inside = int(cell(decoder, INSIDE))
        order = 5  # the step was another, and the door is closed
        assert not outside(plan, products, board, order)
        assert cell(decoder, INSIDE) == inside


def test_buffers_are_moved_when_nobody_is_busy_any_more_and_not_before() -> None:
    with decoding(a_model(), threads=2) as decoder:
        board, order = decoder.plans[3], []
        row = shuffled(2, BLOCKS).row(random_ids(4, 70)[0])
        decoder.step(step_of(decoder.shape, [(row, 1)]))
        await_empty(board, BUSY)
        add_busy(board, 1)
        decoder.step(step_of(decoder.shape, [(row, 2)]))  # there is room for it

        def grow() -> None:
            decoder.step(step_of(decoder.shape, [(row, 60)]))
            order.append("moved")

        thread = threading.Thread(target=grow)
        thread.start()
        while thread.is_alive() and cell(decoder, SLEEPING) < 2:  # it, and the other thread of the team
            thread.join(0.001)
        order.append("left")
        add_busy(board, -1)
        thread.join()
        assert order == ["left", "moved"]


def test_many_teams_on_few_cores_compute_what_one_thread_does(right: list[bytes]) -> None:
    """Whoever computes is put to sleep for another again and again, in whatever phase it is."""
    found: list[list[bytes]] = []

    def compute() -> None:
        with decoding(a_model(), threads=5) as decoder:
            found.extend(all_that_is_computed(decoder) for _ in range(10))

    several = [threading.Thread(target=compute) for _ in range(4)]
    for one in several:
        one.start()
    for one in several:
        one.join()
    assert found == [right] * 40


def test_what_a_step_was_given_stays_until_everybody_has_left_it() -> None:
    model = a_model()
    with decoding(model, threads=2) as decoder:
        row = shuffled(2, BLOCKS).row(random_ids(4, 2)[0])
        step = step_of(model.shape, [(row, 1)])
        positions = weakref.ref(step.positions)
        decoder.step(step)
        del step
        gc.collect()
        assert positions() is not None
        decoder.step(step_of(model.shape, [(row, 1)]))
        gc.collect()
        assert positions() is None


def cell(decoder: Decoder, place: int) -> NDArray[np.int32]:
    """A counter of the board."""
    memory, board = decoder._team._memory, decoder._team.board
    return memory[(board + place - memory.ctypes.data) // 4, ...]


@njit(nogil=True)
def outside(plan: np.ndarray, products: np.ndarray, board: int, order: int) -> bool:
    """As a thread that is inside and multiplies the first product, all of whose pieces are done, for no token."""
    enter(board, order)
    found = multiply(plan, products, 0, board, order, 2, 1, 2, 0, 0, WRITE, 0, 0)
    leave(board, INSIDE)
    return found


@njit(nogil=True)
def add_busy(board: int, count: int) -> None:
    if count > 0:
        add_atomic(board + BUSY, np.int32(count))
    else:
        leave(board, BUSY)


@njit(nogil=True)
def walk(plan: np.ndarray, layers: np.ndarray, products: np.ndarray, board: int, which: int) -> None:
    take_step(plan, layers, products, board, 3, which, CLOSED)
