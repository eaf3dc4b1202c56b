"""Who is taken from the queue, with which blocks, and how much of a prompt is found computed."""
import pytest
from policy_world import World

from hamdam.engine.chat import Owner
from hamdam.engine.config import BLOCK_SIZE
from hamdam.engine.policy.admission import PATIENCE
from hamdam.engine.policy.sequence import Status

ANN, BEN = Owner("ann", "ann"), Owner("ben", "ben")
SERVICE = Owner("service", "service", None, None)


@pytest.mark.parametrize(("length", "cached"), [(32, 31), (31, 16), (33, 32), (16, 15), (1, 0)])
@pytest.mark.parametrize("session", [None, "s"])
def test_d01_a_prompt_that_is_wholly_cached_leaves_one_token_to_compute(length, cached, session):
    world = World()
    prompt = [n % 4 for n in range(length)]
    first = world.submit(prompt, ANN, session, max_tokens=1)
    world.finish()
    again = world.submit(prompt, ANN, session, max_tokens=1)
    world.finish()
    assert first.num_cached == 0
    assert again.num_cached == (length - 1 if session else cached)
    assert again.ids == first.ids


def test_d01_three_copies_at_once_give_the_same_ids_and_cache_the_last_block_once():
    world = World()
    copies = [world.submit([n % 4 for n in range(32)], SERVICE) for _ in range(3)]
    world.finish()  # the world looks that nobody writes a shared block and compares each answer with what it is alone
    assert copies[0].ids == copies[1].ids == copies[2].ids
    assert [copy.num_cached for copy in copies] == [0, 31, 31]
    assert world.scheduler.pool.num_cached == 2


def test_d03_hits_are_held_before_new_blocks_are_taken():
    world = World(num_blocks=4)
    prompt = [n % 4 for n in range(48)]
    world.submit(prompt, ANN, max_tokens=1)
    world.finish()
    assert world.scheduler.pool.num_cached == 3
    sequence = world.submit(prompt[:32] + [3] * 32, ANN, max_tokens=1)
    batch = world.scheduler.schedule(0.0)
    assert sequence.num_cached == batch.rows[0].start == 32
    assert sequence.block_table[:2] == [0, 1]
    assert sorted(sequence.block_table) == [0, 1, 2, 3]  # what it did not hit of the cached was evicted


def test_d03_when_the_rest_does_not_fit_the_hold_is_undone_and_the_sequence_waits():
    world = World(num_blocks=8, max_batch_tokens=64)
    prompt = [n % 4 for n in range(48)]
    world.submit(prompt, SERVICE, max_tokens=1)
    world.finish()
    running = world.submit([3] * 50, SERVICE, max_tokens=8)
    world.step()
    waiting = world.submit(prompt + [3] * 70, SERVICE, max_tokens=1)  # 8 blocks, of which 3 are cached
    while running.status is Status.RUNNING:
        assert not waiting.block_table
        assert (world.scheduler.pool.num_cached, world.scheduler.pool.num_running) == (3, 4)
        world.step()
    world.finish()
    assert waiting.num_cached == 48


def test_a_half_full_block_moves_with_its_session_and_is_not_copied():
    world = World()
    conversation = world.open(ANN)
    world.send(conversation, *[1] * 20, max_tokens=3)
    world.finish()
    blocks = list(world.scheduler.sessions[conversation.id].blocks)
    again = world.send(conversation, 2, 3)
    batch = world.scheduler.schedule(0.0)
    assert again.num_cached == 22  # all that was computed: the last id of an answer is not
    assert again.block_table[:2] == blocks
    assert batch.copies == []


def test_a_branch_copies_the_block_in_which_it_parts_and_the_old_branch_stays_cached():
    world = World()
    conversation = world.open(ANN)
    first = world.send(conversation, *[1] * 40, max_tokens=20)
    world.finish()
    old = list(first.ids)
    conversation.ids = [1] * 36
    branch = world.send(conversation, 3, 3, 3)
    source = world.scheduler.sessions[conversation.id].blocks[2]
    batch = world.scheduler.schedule(0.0)
    assert branch.num_cached == 36
    assert batch.copies == [(source, branch.block_table[2])]
    world.scheduler.update(batch, world._run(batch), 0.0)
    world.finish()
    conversation.ids = old
    back = world.send(conversation, 2)
    world.finish()
    assert back.num_cached == len(old) // BLOCK_SIZE * BLOCK_SIZE


def test_fifty_requests_with_one_system_prompt_compute_it_once():
    world = World(num_blocks=400, max_batch_tokens=256)
    system = [n % 4 for n in range(1200)]
    for n in range(50):
        world.submit([*system, *[n // 4 % 4, n % 4, n // 16, 1, 2]], SERVICE, max_tokens=1)
    world.finish()
    stats = world.scheduler.stats()
    assert stats.tokens_computed == 1200 + 50 * 5
    assert stats.tokens_reused == 49 * 1200


def test_who_waits_for_a_block_goes_on_when_its_computer_is_cancelled():
    world = World(num_blocks=64, max_batch_tokens=16)
    prompt = [n % 4 for n in range(160)]
    first, second = (world.submit(prompt, SERVICE, max_tokens=1) for _ in range(2))
    world.step()
    world.step()
    assert (first.status, second.status) == (Status.RUNNING, Status.WAITING)
    world.cancel(first.id)
    world.step()
    assert second.status is Status.RUNNING
    assert second.num_cached == 32
    world.finish()


def test_the_index_is_asked_when_a_sequence_is_scheduled_and_not_when_it_arrives():
    world = World(max_running=1)
    prompt = [n % 4 for n in range(64)]
    world.submit(prompt, ANN)
    late = world.submit(prompt, ANN)
    world.finish()
    assert late.num_cached == 63


def test_a_sequence_that_does_not_fit_is_passed_by_but_not_for_ever():
    world, taken = World(num_blocks=12, max_batch_tokens=64), 0
    world.submit([1] * 16, SERVICE, max_tokens=9)
    world.step()
    giant = world.submit([1] * 180, BEN, max_tokens=1)  # 12 blocks: all there are
    while giant.status is Status.WAITING:
        if len(world.live) < 4:  # one a step: they never end all at once
            world.submit([2, 3, taken % 4], SERVICE, max_tokens=5)
            taken += 1
        world.step()
    assert PATIENCE <= taken <= PATIENCE + 3
    assert giant.passed_by == 0  # patient again, should it be preempted
    world.finish()
