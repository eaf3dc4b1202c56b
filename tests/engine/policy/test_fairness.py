"""Whose turn it is, and how a step's tokens are shared."""
from policy_world import World

from hamdam.engine.chat import Owner
from hamdam.engine.policy.fairness import FairQueue
from hamdam.engine.policy.sampling_params import SamplingParams
from hamdam.engine.policy.sequence import Sequence


def sequence(number, owner, *, length=10, computed=0):
    ids = [0] * length
    return Sequence(
        id=number, owner=Owner(owner, owner), ids=ids, num_prompt=length, params=SamplingParams(), seed=0, max_tokens=9,
        num_computed=computed,
    )  # fmt: skip


def queue_of(*sequences):
    queue = FairQueue()
    for waiting in sequences:
        queue.push(waiting)
    return queue


def turns(queue):
    return [waiting.id for waiting in queue.in_turn()]


def test_owners_take_turns_and_each_owners_own_come_in_order():
    arrivals = ("dan", "dan", "dan", "ann", "ben", "ann")
    queue = queue_of(*(sequence(n, owner) for n, owner in enumerate(arrivals, 1)))
    assert turns(queue) == [1, 4, 5, 2, 6, 3]


def test_the_least_served_owner_comes_first():
    queue = queue_of(sequence(1, "ann"), sequence(2, "ben"))
    queue.charge(sequence(1, "ann"), 100)
    assert turns(queue) == [2, 1]


def test_who_comes_back_is_level_with_the_least_served_and_has_saved_nothing_up():
    first, second = sequence(1, "ann"), sequence(2, "ben")
    queue = queue_of(first, second)
    queue.remove(second)
    queue.charge(first, 1000)
    queue.push(sequence(3, "ben"))
    queue.charge(sequence(3, "ben"), 1)
    assert turns(queue) == [1, 3]


def test_a_preempted_sequence_is_its_owners_next():
    first, second = sequence(1, "ann"), sequence(2, "ann")
    queue = queue_of(first, second)
    queue.start(first)
    queue.push_back(first)
    assert turns(queue) == [1, 2]
    assert queue.may_start(first)


def test_an_owner_has_no_more_running_than_is_allowed():
    queue = queue_of(*(sequence(n, "ann") for n in (1, 2, 3)))
    first, second, third = queue.in_turn()
    queue.start(first)
    queue.start(second)
    assert not queue.may_start(third)
    queue.end(first)
    assert queue.may_start(third)


def test_who_needs_one_token_gets_it_and_prompts_share_the_rest():
    decoding = [sequence(n, f"o{n}", computed=9) for n in (1, 2, 3)]
    long, short = sequence(4, "ben", length=5000), sequence(5, "ann", length=10)
    queue = queue_of(*decoding, long, short)
    shares = dict(queue.share([*decoding, long, short], 32))
    assert [shares[s] for s in decoding] == [1, 1, 1]
    assert (shares[short], shares[long]) == (10, 19)


def test_the_oldest_prompt_keeps_half_however_many_come_after():
    oldest = sequence(1, "ann", length=5000)
    others = [sequence(n, f"o{n}", length=100) for n in range(2, 30)]
    queue = queue_of(oldest, *others)
    queue.charge(oldest, 10_000)
    shares = dict(queue.share([oldest, *others], 64))
    assert shares[oldest] == 32
    assert shares[others[0]] == 32
    assert len(shares) == 2


def test_the_other_half_goes_to_the_least_served_owner_and_there_to_the_shortest():
    oldest, much, little, shorter = (
        sequence(n, owner, length=length)
        for n, owner, length in [(1, "ann", 500), (2, "ben", 10), (3, "cat", 30), (4, "cat", 20)]
    )
    queue = queue_of(oldest, much, little, shorter)
    queue.charge(much, 1)
    shares = dict(queue.share([oldest, much, little, shorter], 64))
    assert shares == {shorter: 20, little: 12, oldest: 32}


def test_a_share_never_exceeds_what_is_needed_or_the_budget():
    prompts = [sequence(n, "ann", length=n + 2) for n in range(1, 9)]
    for budget in range(9, 80):
        shares = queue_of(*prompts).share(prompts, budget)
        assert sum(count for _, count in shares) == min(budget, sum(p.num_uncomputed for p in prompts))
        assert all(0 < count <= s.num_uncomputed for s, count in shares)


def test_d13_a_running_answer_gets_a_token_in_every_step_and_a_short_prompt_passes_a_long_one():
    waits = {}
    for chunks in (50, 500):
        world = World(num_blocks=4000, max_batch_tokens=32, max_context=100_000)
        a, b, c = (Owner(name, name) for name in ("ann", "ben", "cat"))
        streaming = world.submit([1, 2, 3], a, max_tokens=1000)
        world.step()
        world.submit([n % 4 for n in range(32 * chunks)], b, max_tokens=1)
        world.step()
        short, since = world.submit([1] * 10, c, max_tokens=1), world.steps
        while short.id in world.live:
            before = streaming.num_generated
            world.step()
            assert streaming.num_generated == before + 1
        waits[chunks] = world.steps - since
    assert waits[50] == waits[500] == 1


def test_d13_two_hundred_requests_of_one_owner_delay_another_by_no_more_than_one():
    world = World(num_blocks=400, max_batch_tokens=33, max_running=4)
    crowd = Owner("dan", "dan", None, None)
    for n in range(200):
        world.submit([n % 4, n // 4 % 4, n // 16 % 4, *[1] * 29], crowd, max_tokens=4)
    for _ in range(5):
        world.step()
    done = len(world.ended)
    other = world.submit([1] * 10, Owner("cat", "cat"), max_tokens=4)
    since = world.steps
    while not other.num_generated:
        world.step()
    assert len(world.ended) - done <= 1 + 1  # a place becomes free when one of the four ends
    assert world.steps - since <= 8
