"""The scheduler's promises, counted in steps: roots, bounds, preemption, cancel, and what it tells."""
import random

import pytest
from policy_world import END, World, solo

from hamdam.engine.chat import Owner
from hamdam.engine.errors import PromptTooLong
from hamdam.engine.policy.integrity import IntegrityError
from hamdam.engine.policy.progress import Admitted, Appended, Computed, Ended
from hamdam.engine.policy.sequence import Status

ANN, BEN = Owner("ann", "ann"), Owner("ben", "ben")
SERVICE = Owner("service", "service", None, None)


def test_the_facts_of_a_life_come_in_order():
    world = World(max_batch_tokens=32)
    sequence = world.submit([1] * 40, ANN, max_tokens=2)
    world.finish()
    assert world.facts == [
        Admitted(sequence, 0),
        Computed(sequence, 32, 40),
        Computed(sequence, 40, 40),
        Appended(sequence, sequence.ids[40]),
        Appended(sequence, sequence.ids[41]),
        Ended(sequence, "length"),
    ]


def test_an_end_id_ends_the_answer_and_is_no_part_of_it():
    world = World()
    prompt = next([n, m] for n in range(4) for m in range(4) if END in solo("ann", [n, m], 20)[2:])
    answer = solo("ann", prompt, 20)
    answer = answer[: answer.index(END)]
    sequence = world.submit(prompt, ANN, "s", max_tokens=50, ignore_end=False)
    world.finish()
    assert sequence.ids == prompt + answer
    assert world.ended[sequence.id] == Ended(sequence, "stop", END)
    assert world.scheduler.sessions["s"].ids == prompt + answer


def test_a_broken_row_ends_alone_and_nothing_of_it_is_found_again():
    world = World(num_blocks=24)
    bad, good = world.submit([1] * 40, ANN, "s", max_tokens=20), world.submit([2] * 40, BEN, max_tokens=20)
    for _ in range(6):
        world.step()
    world.breaks.add(bad.id)
    world.finish()
    assert world.ended[bad.id] == Ended(bad, "failed", None, "not a number")
    assert good.num_generated == 20
    again = world.submit([1] * 40, ANN, "s")
    world.finish()
    assert again.num_cached == 0


def foreseen(world):
    """(sequence id, place) of each row of the step after this one, asked for while this one runs; or None."""
    batch = world.scheduler.schedule(world.now)
    drawn = world._run(batch)
    next_one = batch.foresee()
    assert batch.foresee() is None, "it is asked for once"
    world.scheduler.update(batch, drawn, world.now)
    if next_one is not None:
        assert world.scheduler.schedule(world.now) is next_one
        world.scheduler.update(next_one, world._run(next_one), world.now)
    return next_one and {row.sequence.id: row.start for row in next_one.rows}


def test_where_everybody_decodes_the_next_step_is_foreseen_but_for_its_ids():
    world = World(num_blocks=24)
    one, other = world.submit([1] * 20, ANN, max_tokens=30), world.submit([2] * 10, BEN, max_tokens=30)
    assert foreseen(world) == {one.id: 20, other.id: 10}
    assert foreseen(world) == {one.id: 22, other.id: 12}
    world.finish()


def test_who_has_to_end_in_a_step_is_not_in_the_one_that_it_foresees():
    world = World(num_blocks=24)
    one, other = world.submit([1] * 20, ANN, max_tokens=30), world.submit([2] * 10, BEN, max_tokens=1)
    assert foreseen(world) == {one.id: 20}
    assert one.num_generated == 2 and other.num_generated == 1
    last = world.submit([3], BEN, max_tokens=1)
    world.cancel(one.id)
    assert foreseen(world) is None
    assert last.finish_reason == "length"


def test_nothing_is_foreseen_where_somebody_reads_a_prompt_could_join_or_would_have_to_make_room():
    world = World(num_blocks=24, max_batch_tokens=32, max_running=2)
    one, other = world.submit([1] * 13, ANN, max_tokens=20), world.submit([2] * 40, BEN, max_tokens=20)
    assert foreseen(world) is None, "a prompt is read"
    assert foreseen(world) == {one.id: 14, other.id: 40}
    waiting = world.submit([3] * 4, BEN, max_tokens=1)
    taken = world.scheduler.pool.allocate(world.scheduler.pool.num_allocatable)
    assert foreseen(world) is None, "one needs a block, and there is none"
    world.scheduler.pool.release(taken)
    assert foreseen(world) == {one.id: 17, other.id: 43}, "who waits cannot join: two run"
    world.scheduler.cancel(one.id)
    batch = world.scheduler.schedule(world.now)
    assert {row.sequence.id for row in batch.rows} == {other.id, waiting.id}


def test_the_integrity_check_sees_a_waiting_sequence_that_holds_blocks():
    world = World(max_running=1)
    world.submit([1], ANN)
    waiting = world.submit([2], ANN)
    world.step()
    waiting.block_table = world.scheduler.pool.allocate(1)
    with pytest.raises(IntegrityError, match="waits and holds blocks"):
        world.scheduler.check_integrity()


def test_an_idle_scheduler_gives_an_empty_batch():
    world = World()
    assert world.scheduler.schedule(0.0).rows == []
    assert not world.scheduler.has_work
    assert world.scheduler.stats().state == "idle"


def test_the_state_says_whether_prompts_or_answers_are_computed():
    world = World(max_batch_tokens=8)
    world.submit([1] * 10, ANN, max_tokens=2)
    assert world.scheduler.stats().state == "prefilling"
    world.step()
    world.step()
    assert world.scheduler.stats().state == "decoding"


def test_d04_nothing_but_the_owner_chooses_a_root():
    world = World(num_blocks=160, max_batch_tokens=256)
    prompt = [1, 2, 3] * 200
    first = world.submit(prompt, ANN)
    world.finish()
    theirs = [world.submit(prompt, BEN), world.submit([*prompt[:-1], 0], Owner("eve", "eve"))]
    world.finish()
    again = world.submit(prompt, ANN)
    world.finish()
    assert first.num_cached == 0
    assert [sequence.num_cached for sequence in theirs] == [0, 0]
    assert again.num_cached == 592  # up to a block's border


def test_d04_owners_of_one_root_share_at_the_borders_of_blocks():
    world = World(num_blocks=32)
    world.submit([1] * 40, Owner("ann", "team"))
    world.finish()
    other = world.submit([1] * 40, Owner("ben", "team"))
    world.finish()
    assert other.num_cached == 32


@pytest.mark.parametrize(("blocks_needed", "is_taken"), [(11, True), (12, True), (13, False)])
def test_d07_a_prompt_that_can_never_fit_is_refused_at_once(blocks_needed, is_taken):
    world = World(num_blocks=12)
    prompt = [1] * (16 * (blocks_needed - 1) + 1)
    assert world.scheduler.fits(len(prompt)) is is_taken
    if not is_taken:
        with pytest.raises(PromptTooLong) as refusal:
            world.submit(prompt, ANN)
        assert (refusal.value.tokens, refusal.value.limit) == (193, 192)
        assert not world.scheduler.has_work
    else:
        world.submit(prompt, ANN)
    small = world.submit([2] * 5, BEN)
    world.step()
    world.step()
    assert small.num_generated > 0 or is_taken
    world.finish()
    assert small.num_generated == 8


def test_d07_a_prompt_of_exactly_the_pool_or_the_context_gets_one_token():
    for world, longest in [(World(num_blocks=3), 48), (World(num_blocks=100, max_context=49), 48)]:
        assert world.scheduler.max_prompt == longest
        sequence = world.submit([1] * longest, ANN, "s", max_tokens=50)
        world.finish()
        assert (sequence.finish_reason, sequence.num_generated) == ("length", 1)


def test_d07_an_answer_that_grows_past_the_pool_ends_with_length():
    world = World(num_blocks=4)
    sequence = world.submit([1] * 20, ANN, "s", max_tokens=1000)
    world.finish()
    assert sequence.finish_reason == "length"
    assert len(sequence.ids) == 4 * 16 + 1


def test_d07_a_giant_that_waits_for_room_does_not_block_the_others():
    world = World(num_blocks=12)
    running = world.submit([1] * 16, ANN, max_tokens=100)
    world.step()
    giant = world.submit([1] * 180, BEN)
    small, since = world.submit([2] * 5, Owner("cat", "cat"), max_tokens=1), world.steps
    while small.id in world.live:
        world.step()
    assert world.steps - since == 1
    assert (running.status, giant.status) == (Status.RUNNING, Status.WAITING)
    world.cancel(giant.id)
    world.finish()
    assert running.num_generated == 100


def test_preempted_is_the_youngest_and_its_session_keeps_what_it_computed():
    world = World(num_blocks=6, max_batch_tokens=64)
    old = world.submit([1] * 40, ANN, "old", max_tokens=40)
    young = world.submit([2] * 16, BEN, "young", max_tokens=40)
    while young.status is not Status.WAITING or not young.started:
        world.step()
    assert old.status is Status.RUNNING
    assert world.scheduler.stats().preemptions == 1
    assert not young.block_table
    assert 0 < len(world.scheduler.sessions["young"].ids) < len(young.ids)
    world.finish()
    assert old.num_generated == young.num_generated == 40
    assert [fact for fact in world.facts if isinstance(fact, Admitted)] == [Admitted(old, 0), Admitted(young, 0)]


def test_who_waits_for_a_block_goes_on_when_its_computer_is_preempted():
    world = World(num_blocks=12, max_batch_tokens=3)
    old = world.submit([1] * 10, ANN, max_tokens=60)
    young = world.submit([2] * 150, BEN, max_tokens=1)
    same = world.submit([2] * 151, BEN, max_tokens=1)
    while young.status is not Status.WAITING or not young.started:
        world.step()
        assert same.status is Status.WAITING
    assert not world.scheduler._admission._underway
    assert old.status is Status.RUNNING
    world.finish()
    assert max(young.num_cached, same.num_cached) >= 144


def test_nobody_is_taken_into_the_block_that_a_running_sequence_needs_next():
    world = World(num_blocks=4, max_batch_tokens=64)
    world.submit([1] * 30, ANN, max_tokens=10)
    world.step()
    waiting = world.submit([2] * 32, BEN, max_tokens=5)
    world.finish()
    assert waiting.num_generated == 5
    assert world.scheduler.stats().preemptions == 0


def test_a_sequence_has_no_more_than_its_share_of_places():
    world = World(num_blocks=64, max_batch_tokens=4, max_running=64)
    for n in range(10):
        world.submit([n % 4], SERVICE, max_tokens=30)
    for _ in range(10):
        world.step()
        assert world.scheduler.num_running <= 3  # a token each, and one for a prompt
    assert world.scheduler.num_waiting == 7
    assert world.scheduler.waiting_ids() == list(range(4, 11))


@pytest.mark.parametrize("phase", ["queued", "prefill", "decode", "preempted"])
def test_d11_cancel_gives_everything_back_in_every_phase(phase):
    world = World(num_blocks=6 if phase == "preempted" else 32, max_batch_tokens=24, max_running=8)
    if phase == "preempted":
        world.submit([2] * 40, BEN, max_tokens=40)
    sequence = world.submit([1] * 40 if phase != "preempted" else [1] * 16, ANN, max_tokens=40)
    reached = {
        "queued": lambda: True,
        "prefill": lambda: 0 < sequence.num_computed < 40,
        "decode": lambda: sequence.num_generated > 2,
        "preempted": lambda: sequence.started and sequence.status is Status.WAITING,
    }[phase]
    while not reached():
        world.step()
    world.cancel(sequence.id)
    held = {block for running in world.live.values() for block in running.block_table}
    assert world.scheduler.pool.num_running == len(held)
    assert world.ended[sequence.id].reason == "cancelled"
    world.finish()
    assert world.scheduler.pool.num_running == 0
    assert world.scheduler.cancel(sequence.id) is None


def test_d11_cancel_and_retry_leave_the_answers_of_others_as_they_are_alone():
    world = World(num_blocks=40, max_batch_tokens=64)
    prefix = [n % 4 for n in range(128)]
    prompts = [[*prefix, n % 4, n // 4] for n in range(8)]
    sequences = [world.submit(prompt, SERVICE, max_tokens=24) for prompt in prompts]
    others = [world.submit([n] * 20, ANN, max_tokens=24) for n in range(2)]
    for at in (15, 19):
        while world.steps < at:
            world.step()
        gone = sequences.pop(0)
        world.cancel(gone.id)
        sequences.append(world.submit(gone.ids[:130], SERVICE, max_tokens=24))
    world.finish()
    for sequence in sequences + others:
        prompt = sequence.ids[: sequence.num_prompt]
        assert sequence.ids[sequence.num_prompt :] == solo(sequence.owner.cache_root, prompt, 24)


@pytest.mark.parametrize("is_shared", [True, False])
def test_d11_two_thousand_short_requests_a_third_of_them_cancelled_leak_nothing(is_shared):
    chance = random.Random(11)
    world = World(num_blocks=32, max_batch_tokens=48, max_running=8)
    for n in range(2000):
        owner = SERVICE if is_shared else Owner("service", f"root-{n}", None, None)
        world.submit([1] * 20 + [chance.randrange(4) for _ in range(4)], owner, max_tokens=4)
        if chance.random() < 0.3:
            world.cancel(chance.choice(list(world.live)))
        if len(world.live) > 8:
            world.step()
    world.finish()
    pool = world.scheduler.pool
    assert world.counts["cancelled"] > 500
    assert (pool.num_running, pool.num_pinned) == (0, 0)
    assert pool.num_empty + pool.num_cached == 32
    assert (world.counts["cached"] > 0) is is_shared
    assert not world.scheduler._known
    assert not world.scheduler._admission._underway
    assert not world.scheduler.sessions._of
