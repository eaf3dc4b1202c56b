"""team: threads end a phase together, nobody is waited for without need, and they end when they are told."""
import gc
import os
import sys
import threading
import weakref

import numpy as np
import pytest
from numba import njit
from packed_numbers import address

from hamdam.kernels.cpu.lanes import peek_int, poke_int
from hamdam.kernels.cpu.native import native
from hamdam.kernels.cpu.sharing import DONE, clear, finish, take
from hamdam.kernels.cpu.team import (
    CELL,
    CLOSED,
    CROWDED,
    END,
    INSIDE,
    ORDER,
    SLEEPING,
    TICKETS,
    Team,
    announce,
    await_change,
    await_empty,
    await_order,
    enter,
    leave,
    read_atomic,
    write_atomic,
)  # fmt: skip

STEPS, PHASES, PIECES = 20, 500, 3  # pieces of a phase
NEVER = -1


@native
def walk(board: int, threads: int, which: int, said: int, gate: int, held_in: int) -> int:
    """Says of each piece of each phase which phase it was done in. Returns how often a piece of a phase that is over
    says less. gate: where thread 1 says that it has come to the phase `held_in`, and waits there for a 2, once."""
    wrong = 0
    for phase in range(PHASES):
        if which == 1 and phase == held_in and read_atomic(gate) == 0:
            announce(gate, 0, 1)
            while read_atomic(gate) != 2:
                await_change(gate, 0, 1)
        mine = 0
        piece = take(board, phase)
        while piece < PIECES:
            poke_int(said + CELL * piece, np.int32(phase))
            piece, mine = take(board, phase), mine + 1
        finish(board, threads, phase, mine, PIECES)
        for piece in range(PIECES):
            if peek_int(said + CELL * piece) < phase:
                wrong += 1
    return wrong


@njit(nogil=True)
def follow(board: int, threads: int, which: int, said: int, wrong: int, gate: int, held_in: int, order: int) -> None:
    """As step.run_step does: thread 0 orders and takes part once, another until the end. Each counts its own faults."""
    if which == 0:
        await_empty(board, INSIDE)
        clear(board, PHASES)
        announce(board, ORDER, order)
        poke_int(wrong, np.int32(peek_int(wrong) + walk(board, threads, which, said, gate, held_in)))
        write_atomic(board + ORDER, np.int32(CLOSED))
        return
    order = await_order(board, CLOSED)
    while order != END:
        if enter(board, order):
            own = wrong + CELL * which
            poke_int(own, np.int32(peek_int(own) + walk(board, threads, which, said, gate, held_in)))
        leave(board, INSIDE)
        order = await_order(board, order)


class Walkers:
    """A team that walks."""

    def __init__(self, threads: int, held_in: int = NEVER) -> None:
        self.said, self.wrong, self.gate = cells(PIECES), cells(threads), cells(5)  # as many as announce() looks at
        self._own = address(self.said), address(self.wrong), address(self.gate), held_in
        self.team = Team(threads, PHASES, lambda board, threads, which: follow(board, threads, which, *self._own, 0))
        self.orders = 0

    def step(self) -> None:
        self.orders += 1
        follow(self.team.board, self.team.threads, 0, *self._own, self.orders)

    def standing(self, cell: int) -> int:
        return standing(self.team, cell)


def cells(count: int) -> np.ndarray:
    return np.zeros((count, CELL // 4), np.int32)


def standing(team: Team, cell: int) -> int:
    return int(peek(team.board + cell))


@njit
def peek(at: int) -> int:
    return peek_int(at)


def ours() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("hamdam-step-")]


@pytest.mark.parametrize("threads", [2, 3, 5])
def test_threads_end_ten_thousand_phases_together_and_each_sees_what_the_others_wrote(threads: int) -> None:
    walkers = Walkers(threads)
    for _ in range(STEPS):
        walkers.step()
        assert {walkers.standing(TICKETS + CELL * phase + DONE) for phase in range(PHASES)} == {PIECES}
    walkers.team.close()
    assert walkers.wrong[:, 0].tolist() == [0] * threads
    assert walkers.standing(INSIDE) == walkers.standing(SLEEPING) == 0


@pytest.mark.parametrize("phase", [0, 1, PHASES - 1])
def test_nobody_waits_for_a_thread_that_has_nothing_to_do_but_the_next_step_does(phase: int) -> None:
    walkers = Walkers(3, held_in=phase)
    gate = address(walkers.gate)
    while not peek(gate):  # until thread 1 was in a step before it was over
        walkers.step()
        while walkers.standing(INSIDE) and not peek(gate):
            pass
    assert walkers.standing(INSIDE) >= 1
    assert walkers.standing(ORDER) == CLOSED
    released: list[int] = []
    empty = threading.Thread(target=lambda: (wait_until_empty(walkers.team.board), released.append(peek(gate))))
    empty.start()
    release(gate)
    empty.join()
    assert released == [2]
    assert walkers.standing(INSIDE) == 0
    walkers.step()
    walkers.team.close()
    assert walkers.wrong[:, 0].tolist() == [0, 0, 0]


def test_a_thread_that_comes_when_the_door_is_closed_is_not_in() -> None:
    walkers = Walkers(1)
    board = walkers.team.board
    walkers.step()
    assert not tries_to_enter(board, walkers.orders)
    assert walkers.standing(INSIDE) == 0
    walkers.team.close()


@pytest.mark.skipif(sys.platform != "linux", reason="nobody can tell where a thread is")
def test_threads_of_one_core_know_it_and_get_on_all_the_same() -> None:
    allowed = os.sched_getaffinity(0)
    core = min(allowed)
    os.sched_setaffinity(0, {core})  # of this thread, and of those it starts
    try:
        walkers = Walkers(2)
        while not walkers.standing(CROWDED):  # until one of them slept at all
            walkers.step()
        walkers.team.close()
        assert walkers.standing(CROWDED) == core + 1
    finally:
        os.sched_setaffinity(0, allowed)
    assert walkers.wrong[:, 0].tolist() == [0, 0]


def test_closing_ends_the_threads_however_often() -> None:
    before = ours()
    team = Walkers(3).team
    assert len(ours()) == len(before) + 2
    team.close()
    assert ours() == before
    team.close()
    assert ours() == before


def test_a_team_that_is_forgotten_keeps_the_memory_that_its_threads_wait_on() -> None:
    before = ours()
    team = Walkers(2).team
    forgotten = weakref.ref(team)
    del team
    gc.collect()
    [thread] = set(ours()) - set(before)
    kept = forgotten()
    assert kept is not None
    kept.close()
    assert not thread.is_alive()


def test_a_team_of_one_has_no_threads_and_waits_for_nobody() -> None:
    before = ours()
    walkers = Walkers(1)
    assert ours() == before
    for _ in range(3):
        walkers.step()
    walkers.team.close()
    assert walkers.wrong[0, 0] == 0


def test_each_counter_has_a_cache_line_of_its_own() -> None:
    team = Walkers(1).team
    assert team.board % CELL == 0
    memory = team._memory
    assert memory.ctypes.data <= team.board
    assert team.board + TICKETS + PHASES * CELL <= memory.ctypes.data + memory.nbytes
    team.close()


@njit(nogil=True)
def wait_until_empty(board: int) -> None:
    await_empty(board, INSIDE)


@njit(nogil=True)
def release(gate: int) -> None:
    announce(gate, 0, 2)


@njit(nogil=True)
def tries_to_enter(board: int, order: int) -> bool:
    inside = enter(board, order)
    leave(board, INSIDE)
    return inside
