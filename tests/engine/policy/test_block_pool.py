"""The block pool by itself: counts, the order of eviction, the index, and what may be written."""
import random

import pytest

from hamdam.engine.config import BLOCK_SIZE
from hamdam.engine.policy.block_pool import BlockPool
from hamdam.engine.policy.chain import extend
from hamdam.engine.policy.integrity import IntegrityError

ROOT = ("kv", "ann")


def links_of(ids):
    links = []
    extend(links, list(ids), ROOT)
    return links


def published(pool, ids):
    """A holder's blocks for `ids`, all published."""
    links = links_of(ids)
    blocks = pool.allocate(len(links))
    for number, block in enumerate(blocks):
        pool.publish(block, links, number)
    return blocks


def test_empty_blocks_go_before_cached_ones_and_a_chains_tail_before_its_head():
    pool = BlockPool(6)
    old, new = published(pool, range(32)), published(pool, range(100, 132))
    pool.release(old)
    pool.release(new)
    assert (pool.num_empty, pool.num_cached) == (2, 4)
    assert set(pool.allocate(2)) == {4, 5}
    assert pool.allocate(4) == [old[1], old[0], new[1], new[0]]


def test_a_hit_holds_a_block_so_that_it_is_not_evicted():
    pool = BlockPool(4)
    pool.release(published(pool, range(48)))
    hits = pool.match(links_of(range(32)))
    pool.acquire(hits)
    fresh = pool.allocate(2)
    assert not set(hits) & set(fresh)
    assert pool.num_allocatable == 0
    assert pool.match(links_of(range(48))) == hits


def test_an_allocated_block_cannot_be_found_any_more():
    pool = BlockPool(2)
    pool.release(published(pool, range(32)))
    pool.allocate(1)
    assert len(pool.match(links_of(range(32)))) == 1
    pool.allocate(1)
    assert pool.match(links_of(range(32))) == []


def test_a_block_is_writable_only_for_its_one_holder_and_before_it_is_published():
    pool = BlockPool(3)
    alone, shared, known = pool.allocate(3)
    pool.acquire([shared])
    pool.publish(known, links_of(range(16)), 0)
    assert pool.is_writable(alone)
    assert not pool.is_writable(shared)
    assert not pool.is_writable(known)
    pool.release([alone])
    assert not pool.is_writable(alone)


def test_the_first_block_published_for_a_prefix_stays():
    pool = BlockPool(3)
    first, second = published(pool, range(16)), published(pool, range(16))
    assert pool.match(links_of(range(16))) == first
    pool.release(second)
    assert (pool.num_empty, pool.num_cached) == (2, 0)  # the second cannot be found, so it is not cached


def test_forgetting_empties_what_nobody_holds_and_leaves_the_rest():
    pool = BlockPool(3)
    blocks = published(pool, range(48))
    pool.acquire(blocks[:1])
    pool.release(blocks)
    pool.forget([link.key for link in links_of(range(48))])
    assert (pool.num_empty, pool.num_cached, pool.num_running) == (2, 0, 1)
    assert pool.match(links_of(range(48))) == blocks[:1]


def test_what_is_withdrawn_is_found_no_more_and_not_cached():
    pool = BlockPool(2)
    blocks = published(pool, range(32))
    pool.withdraw(blocks)
    assert pool.match(links_of(range(32))) == []
    pool.release(blocks)
    assert (pool.num_empty, pool.num_cached) == (2, 0)


def test_a_block_is_pinned_while_all_its_holders_are_idle_sessions():
    pool = BlockPool(2)
    [block] = pool.allocate(1)
    pool.pin([block])
    assert (pool.num_pinned, pool.num_running, pool.num_available) == (1, 0, 2)
    pool.acquire([block])
    assert (pool.num_pinned, pool.num_running, pool.num_available) == (0, 1, 1)
    pool.pin([block])
    assert pool.num_pinned == 1
    pool.unpin([block])
    pool.release([block])
    assert pool.num_pinned == 1


def test_equal_prefixes_become_one_chain_of_objects():
    pool = BlockPool(3)
    published(pool, range(32))
    mine = links_of(range(48))
    pool.match(mine)
    [block] = pool.allocate(1)
    pool.publish(block, mine, 2)
    assert mine[2].parent is mine[1]
    theirs = links_of(range(48))
    assert pool.match(theirs) == [0, 1, block]
    assert all(a is b for a, b in zip(mine, theirs, strict=True))


@pytest.mark.parametrize("wrong", ["a count", "a pin", "the index", "a list"])
def test_an_integrity_check_names_what_does_not_add_up(wrong):
    pool = BlockPool(4)
    running, idle = published(pool, range(16)), pool.allocate(1)
    pool.pin(idle)
    pool.check_integrity([running], [idle])
    if wrong == "a count":
        pool._counts[running[0]] += 1
    elif wrong == "a pin":
        pool._pins[idle[0]] = 0
    elif wrong == "the index":
        pool._index.clear()
    else:
        pool._empty.pop()
    with pytest.raises(IntegrityError, match=r"block \d: |blocks are"):
        pool.check_integrity([running], [idle])


def test_d03_ten_thousand_random_moves_keep_every_block_in_exactly_one_set():
    chance, pool = random.Random(3), BlockPool(12)
    holders: list[tuple[list[int], bool]] = []  # (blocks, whether a session holds them)
    for _ in range(10_000):
        move = chance.choice(("take", "take", "release", "pin", "unpin", "forget"))
        if move == "take":  # as a request does: hits are held before anything is allocated
            ids = [chance.randrange(2)] * (BLOCK_SIZE * chance.randint(1, 4))
            links = links_of(ids)
            hits = pool.match(links)
            pool.acquire(hits)
            missing = len(links) - len(hits)
            if missing > pool.num_allocatable:
                pool.release(hits)
            else:
                fresh = pool.allocate(missing)
                assert not set(fresh) & set(hits)
                for number, block in enumerate(fresh, len(hits)):
                    pool.publish(block, links, number)
                holders.append((hits + fresh, False))
        elif move == "forget":
            pool.forget([link.key for link in links_of([chance.randrange(2)] * 64)])
        elif holders:
            blocks, idle = holders.pop(chance.randrange(len(holders)))
            if move == "release":
                if idle:
                    pool.unpin(blocks)
                pool.release(blocks)
            else:
                if idle != (move == "pin"):
                    (pool.pin if move == "pin" else pool.unpin)(blocks)
                holders.append((blocks, move == "pin"))
        pool.check_integrity([b for b, idle in holders if not idle], [b for b, idle in holders if idle])
        assert pool.num_empty + pool.num_cached + pool.num_pinned + pool.num_running == 12
        assert min(pool.num_empty, pool.num_cached, pool.num_pinned, pool.num_running) >= 0
