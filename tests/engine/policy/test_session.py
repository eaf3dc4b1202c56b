"""What a conversation keeps between turns, who takes it away, and what deleting it leaves: nothing."""
import random

import pytest
from policy_world import KV, World

from hamdam.engine.chat import Owner
from hamdam.engine.config import BLOCK_SIZE
from hamdam.engine.errors import PromptTooLong
from hamdam.engine.policy import session as session_module
from hamdam.engine.policy.chain import extend
from hamdam.engine.policy.sequence import Status

ANN, BEN, CAT = Owner("ann", "ann"), Owner("ben", "ben"), Owner("cat", "cat")


def talk(world, owner, length, *, answer=1):
    """A conversation after its first turn."""
    conversation = world.open(owner)
    first = len(world.conversations)
    world.send(conversation, *[(n * first) % 4 for n in range(length)], max_tokens=answer)
    world.finish()
    return conversation


def session(world, conversation):
    return world.scheduler.sessions[conversation.id]


def snapshot(world, conversation):
    kept = session(world, conversation)
    counts = [world.scheduler.pool._counts[block] for block in kept.blocks]
    return list(kept.ids), list(kept.blocks), counts, world.scheduler.stats()


def test_a_session_holds_exactly_what_was_computed():
    world = World()
    conversation = talk(world, ANN, 20, answer=5)
    kept = session(world, conversation)
    assert kept.ids == conversation.ids[:-1]  # the last id was drawn and not computed
    assert len(kept.blocks) == 2
    stats = world.scheduler.stats()
    assert (stats.sessions, stats.blocks_pinned, stats.blocks_running, stats.blocks_cached) == (1, 2, 0, 0)


def test_the_next_turn_computes_only_what_is_new():
    world = World()
    conversation = talk(world, ANN, 20, answer=5)
    before = world.scheduler.stats().tokens_computed
    turn = world.send(conversation, 1, 2, 3, max_tokens=1)
    world.finish()
    assert turn.num_cached == 24
    assert world.scheduler.stats().tokens_computed - before == 4  # the last id of the answer, and three new ones


def test_without_a_session_nothing_is_pinned():
    world = World()
    world.submit([1] * 40, ANN)
    world.finish()
    stats = world.scheduler.stats()
    assert (stats.sessions, stats.blocks_pinned, stats.blocks_cached, stats.blocks_free) == (0, 0, 2, 10)


def test_a_session_of_another_owner_is_neither_read_nor_touched():
    world = World()
    conversation = talk(world, ANN, 40)
    before = snapshot(world, conversation)[:3]
    theirs = world.submit([*conversation.ids, 1], BEN, conversation.id)
    mine_elsewhere = world.submit([*conversation.ids, 1], Owner("ann", "another-root"), conversation.id)
    world.finish()
    assert theirs.num_cached == mine_elsewhere.num_cached == 0
    assert snapshot(world, conversation)[:3] == before
    assert len(world.scheduler.sessions) == 1


def test_d09_a_second_turn_in_a_busy_session_runs_without_pinning():
    world = World(num_blocks=24)
    conversation = world.open(ANN)
    first = world.send(conversation, *[1] * 20, max_tokens=10)
    second = world.send(conversation, 2, max_tokens=20)
    world.finish()
    kept = session(world, conversation)
    assert kept.ids == first.ids[:-1]
    assert second.ids[:20] == first.ids[:20]
    assert world.scheduler.pool.num_pinned == len(kept.blocks) == 2


def test_d09_idle_sessions_make_room_for_another_user_at_once():
    world = World(num_blocks=100, max_batch_tokens=256)
    conversations = [talk(world, Owner(f"o{n}", f"o{n}"), 159) for n in range(10)]
    assert world.scheduler.stats().blocks_pinned == 100
    newcomer = world.submit([1] * 80, CAT)
    world.step()
    assert newcomer.num_generated == 1  # in its first step
    world.finish()
    oldest = conversations[0]
    assert len(session(world, oldest).blocks) == 10 - 6  # 5 blocks for the prompt, one for the answer; the tail first
    assert all(len(session(world, c).blocks) == 10 for c in conversations[1:])
    again = world.send(oldest, 1, 2)  # and is right all the same: the world compares it with what it is alone
    world.finish()
    assert again.num_cached == 4 * BLOCK_SIZE


def test_d09_a_conversation_that_grows_to_the_whole_pool_ends_and_gives_way():
    world = World(num_blocks=10, max_batch_tokens=64)
    conversation = world.open(ANN)
    while len(conversation.ids) + 20 <= world.scheduler.max_prompt:
        world.send(conversation, *[1] * 20, max_tokens=8)
        world.finish()
    with pytest.raises(PromptTooLong, match="at most 160 fit"):
        world.send(conversation, *[1] * 20)
    assert len(session(world, conversation).blocks) <= 10
    other = world.submit([2] * 60, BEN)
    world.step()
    assert other.num_generated == 1
    world.finish()


def test_owners_over_their_quota_are_taken_from_first():
    world = World(num_blocks=20, session_quota=0.5)
    theirs = talk(world, BEN, 60)  # the longest idle: 4 blocks
    mine = [talk(world, ANN, 90) for _ in range(2)]  # 12 blocks of 20
    world.submit([3] * 95, CAT, max_tokens=1)  # 6 blocks, 4 are free
    world.finish()
    assert len(session(world, theirs).blocks) == 4
    assert [len(session(world, conversation).blocks) for conversation in mine] == [4, 6]


def test_within_the_quota_the_longest_idle_are_taken_from_first_and_its_tail_before_its_head():
    world = World(num_blocks=16, session_quota=1.0)
    first, second = talk(world, ANN, 90), talk(world, BEN, 90)
    ids = session(world, first).ids[:]
    world.submit([3] * 95, CAT, max_tokens=1)
    world.finish()
    assert session(world, first).ids == ids[: 4 * BLOCK_SIZE]
    assert len(session(world, second).blocks) == 6


def test_a_session_whose_turn_waits_is_the_last_to_be_taken_from():
    world = World(num_blocks=16, session_quota=1.0, max_running=1)
    first, second = talk(world, ANN, 90), talk(world, BEN, 90)
    world.submit([3] * 60, CAT, max_tokens=30)  # 4 blocks at first, 6 in the end
    world.step()
    waiting = world.send(first, 1)
    while waiting.status is Status.WAITING:
        world.step()
    assert waiting.num_cached == 90
    assert len(session(world, second).blocks) == 4


def test_a_session_idle_for_its_time_is_only_cached_and_found_again():
    world = World(session_ttl=10.0)
    conversation = talk(world, ANN, 40)
    world.now = 9.9
    world.scheduler.expire(world.now)
    assert world.scheduler.pool.num_pinned == 3
    world.now = 10.0
    world.scheduler.expire(world.now)
    stats = world.scheduler.stats()
    assert (stats.blocks_pinned, stats.blocks_cached) == (0, 2)  # the half-full one could not be found
    again = world.send(conversation, 1)
    world.finish()
    assert again.num_cached == 32


def test_deleting_a_conversation_forgets_every_branch_even_what_it_lost():
    world = World(num_blocks=32, session_ttl=10.0)
    conversation = talk(world, ANN, 40, answer=20)
    conversation.ids = conversation.ids[:36]
    world.send(conversation, 3, 3, max_tokens=30)
    world.finish()
    world.now = 10.0
    world.scheduler.expire(world.now)
    assert world.scheduler.pool.num_cached > 4
    world.delete(conversation)
    assert world.scheduler.pool.num_empty == 32
    assert len(world.scheduler.sessions) == 0


def test_deleting_leaves_what_another_conversation_holds():
    world = World(num_blocks=32)
    one, other = world.open(ANN), world.open(ANN)
    world.send(one, *[1] * 40)
    world.finish()
    world.send(other, *[1] * 32, 2)
    world.finish()
    kept = session(world, other).blocks[:]
    world.delete(one)
    assert session(world, other).blocks == kept
    assert world.scheduler.pool.num_cached == 0
    links = []
    extend(links, [1] * 40, (KV, "ann"))
    assert world.scheduler.pool.match(links) == kept[:2]


def test_a_session_that_left_nothing_to_forget_is_not_remembered():
    world = World(num_blocks=4, session_ttl=10.0)
    talk(world, ANN, 12)
    world.now = 10.0
    world.scheduler.expire(world.now)
    assert len(world.scheduler.sessions) == 0


def test_sessions_without_blocks_are_bounded_and_the_oldest_is_forgotten_like_a_deleted_one(monkeypatch):
    monkeypatch.setattr(session_module, "MAX_COLD", 2)
    world = World(num_blocks=32, session_ttl=10.0)
    for n in range(4):
        conversation = world.open(ANN)
        world.send(conversation, *[n] * 20, max_tokens=1)
        world.finish()
    world.now = 10.0
    world.scheduler.expire(world.now)
    assert len(world.scheduler.sessions) == 2
    assert world.scheduler.pool.num_cached == 2


def test_d10_a_refused_turn_leaves_the_session_as_it_was():
    world = World(num_blocks=16)
    conversation = world.open(ANN)
    for _ in range(3):
        world.send(conversation, *[1] * 20)
        world.finish()
    before, ids = snapshot(world, conversation), conversation.ids
    with pytest.raises(PromptTooLong):
        world.send(conversation, *[2] * 300)
    assert snapshot(world, conversation) == before
    conversation.ids = ids
    fifth = world.send(conversation, 3)
    world.finish()
    assert fifth.num_cached == len(ids) - 1


def test_d10_deleting_while_it_decodes_ends_it_first_and_frees_everything():
    world = World()
    conversation = world.open(ANN)
    running = world.send(conversation, *[1] * 20, max_tokens=100)
    guest = world.send(conversation, 2, max_tokens=100)
    for _ in range(10):
        world.step()
    assert running.status is guest.status is Status.RUNNING
    world.delete(conversation)
    assert running.finish_reason == guest.finish_reason == "cancelled"
    assert world.scheduler.pool.num_empty == 12
    assert not world.scheduler.has_work


@pytest.mark.parametrize("keep", [0, 3, 12, 13, 20])
@pytest.mark.parametrize("late", [False, True])
def test_d10_after_a_stop_the_session_holds_the_ids_that_are_kept(keep, late):
    world = World()
    conversation = world.open(ANN)
    prompt = [1] * 20
    sequence = world.send(conversation, *prompt, max_tokens=21)
    while sequence.num_generated < 20:
        world.step()
    answer = sequence.ids[20:]
    if late:
        world.finish()  # it ended by itself before that was told
    world.cancel(sequence.id, keep)
    assert session(world, conversation).ids == (prompt + answer[:keep])[: 40 if late else 39]
    go_on = world.submit(prompt + answer[:keep] + [3], ANN, conversation.id)
    world.finish()
    assert go_on.num_cached == min(20 + keep, 40 if late else 39)


def test_d10_a_stop_while_it_waits_preempted_cuts_what_the_session_got():
    world = World(num_blocks=6, max_batch_tokens=64)
    world.submit([1] * 40, BEN, max_tokens=40)
    conversation = world.open(ANN)
    sequence = world.send(conversation, *[2] * 8, max_tokens=40)
    while not sequence.started or sequence.status is not Status.WAITING:
        world.step()
    assert len(session(world, conversation).ids) > 8 + 4
    world.cancel(sequence.id, keep=4)
    assert session(world, conversation).ids == sequence.ids
    assert sequence.num_generated == 4


def test_d10_a_turn_cancelled_before_it_began_leaves_the_session_as_it_was():
    world = World(num_blocks=32, max_running=1)
    conversation = talk(world, ANN, 60, answer=20)
    world.submit([3] * 20, BEN)
    world.step()
    before = session(world, conversation).ids[:]
    world.cancel(world.submit([1] * 3, ANN, conversation.id).id, keep=0)
    assert session(world, conversation).ids == before


def test_a_late_cut_does_nothing_once_another_turn_followed():
    world = World()
    conversation = world.open(ANN)
    first = world.send(conversation, *[1] * 20)
    world.finish()
    world.send(conversation, 2)
    world.finish()
    ids = session(world, conversation).ids[:]
    world.scheduler.cancel(first.id, 1)
    assert session(world, conversation).ids == ids


def test_d10_two_hundred_random_sends_stops_and_deletions_leave_no_block_in_use():
    chance = random.Random(10)
    world = World(num_blocks=24, owners=(ANN, BEN))
    for _ in range(200):
        match chance.randrange(4):
            case 0 | 1:
                conversation = chance.choice([*world.conversations.values(), world.open(chance.choice(world.owners))])
                if len(conversation.ids) < 150:
                    world.send(conversation, *[chance.randrange(4) for _ in range(20)])
            case 2 if world.live:
                world.cancel(chance.choice(list(world.live)), chance.choice((None, 0, 2)))
            case 3:
                world.delete(chance.choice(list(world.conversations.values())))
        world.step()
    world.finish()
    for conversation in list(world.conversations.values()):
        world.delete(conversation)
    assert world.scheduler.pool.num_allocatable == 24
