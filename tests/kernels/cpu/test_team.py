"""team: threads meet, none is lost or overtaken, and they end when they are told."""
import gc
import os
import sys
import threading
import weakref
from collections.abc import Callable

import numpy as np
import pytest
from numba import njit
from packed_numbers import address

from hamdam.kernels.cpu.lanes import peek_int, poke_int
from hamdam.kernels.cpu.native import native
from hamdam.kernels.cpu.team import (
    ARRIVED,
    CELL,
    CROWDED,
    END,
    ORDER,
    SLEEPING,
    TICKETS,
    Team,
    add_atomic,
    announce,
    await_change,
    meet,
    read_atomic,
)  # fmt: skip

ROUNDS = 3_400  # of three meetings each


@native
def take_turns(board: int, threads: int, which: int, seen: int) -> int:
    """Everybody adds 1 to a ticket and writes what it found; between two meetings all have to see the same sum. Returns
    how often one of them did not."""
    wrong = 0
    for round in range(1, ROUNDS + 1):
        add_atomic(board + TICKETS, np.int32(1))
        meet(board, threads)
        if read_atomic(board + TICKETS) != threads * round:
            wrong += 1
        poke_int(seen + CELL * which, np.int32(round))
        meet(board, threads)
        for other in range(threads):
            if peek_int(seen + CELL * other) != round:
                wrong += 1
        meet(board, threads)
    return wrong


@njit(nogil=True)
def follow(board: int, threads: int, which: int, seen: int, wrong: int, order: int) -> None:
    """As step.run_step does: thread 0 orders and takes part once, another until the end."""
    if which == 0:
        announce(board, ORDER, order)
    while True:
        if which != 0:
            order = await_change(board, ORDER, order)
        if order == END:
            return
        add_atomic(wrong, np.int32(take_turns(board, threads, which, seen)))
        if which == 0:
            return


def standing(team: Team, cell: int) -> int:
    return int(peek(team.board + cell))


@njit
def peek(at: int) -> int:
    return peek_int(at)


def followers(seen: np.ndarray, wrong: np.ndarray) -> Callable[[int, int, int], None]:
    return lambda board, threads, which: follow(board, threads, which, address(seen), address(wrong), 0)


def ours() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("hamdam-step-")]


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_threads_meet_ten_thousand_times_and_each_sees_what_the_others_wrote(threads: int) -> None:
    seen, wrong = np.zeros((threads, CELL // 4), np.int32), np.zeros(1, np.int32)
    team = Team(threads, 1, followers(seen, wrong))
    follow(team.board, threads, 0, address(seen), address(wrong), 1)
    team.close()
    assert wrong[0] == 0
    assert seen[:, 0].tolist() == [ROUNDS] * threads
    assert standing(team, TICKETS) == threads * ROUNDS
    assert standing(team, ARRIVED) == standing(team, SLEEPING) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="nobody can tell where a thread is")
def test_threads_of_one_core_know_it_and_meet_all_the_same() -> None:
    seen, wrong = np.zeros((2, CELL // 4), np.int32), np.zeros(1, np.int32)
    allowed = os.sched_getaffinity(0)
    core = min(allowed)
    os.sched_setaffinity(0, {core})  # of this thread, and of those it starts
    try:
        team = Team(2, 1, followers(seen, wrong))
        follow(team.board, 2, 0, address(seen), address(wrong), 1)
        assert standing(team, CROWDED) == core + 1
        team.close()
    finally:
        os.sched_setaffinity(0, allowed)
    assert wrong[0] == 0
    assert standing(team, TICKETS) == 2 * ROUNDS


def test_closing_ends_the_threads_however_often() -> None:
    before = ours()
    seen, wrong = np.zeros((3, CELL // 4), np.int32), np.zeros(1, np.int32)
    team = Team(3, 1, followers(seen, wrong))
    assert len(ours()) == len(before) + 2
    team.close()
    assert ours() == before
    team.close()
    assert ours() == before


def test_a_team_that_is_forgotten_keeps_the_memory_that_its_threads_wait_on() -> None:
    before = ours()
    team = Team(2, 1, followers(np.zeros((2, CELL // 4), np.int32), np.zeros(1, np.int32)))
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
    team = Team(1, 1, followers(np.zeros(16, np.int32), np.zeros(1, np.int32)))
    assert ours() == before
    for _ in range(3):
        alone(team.board)
    team.close()


@njit(nogil=True)
def alone(board: int) -> None:
    meet(board, 1)


def test_each_counter_has_a_cache_line_of_its_own() -> None:
    team = Team(1, 5, followers(np.zeros(16, np.int32), np.zeros(1, np.int32)))
    assert team.board % CELL == 0
    memory = team._memory
    assert memory.ctypes.data <= team.board
    assert team.board + TICKETS + 5 * CELL <= memory.ctypes.data + memory.nbytes
    team.close()
