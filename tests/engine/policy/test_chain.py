"""The hash chain: keys that only the same prefix in the same root has, and links that are compared in full."""
import itertools

from policy_world import KV, World

from hamdam.engine.config import BLOCK_SIZE
from hamdam.engine.policy import chain
from hamdam.engine.policy.block_pool import BlockPool
from hamdam.engine.policy.chain import common_prefix, extend, key_of, same

IDS = tuple(range(BLOCK_SIZE))
ROOT = ("model-1/float32", "ann")


def links_of(ids, root=ROOT):
    links = []
    extend(links, list(ids), root)
    return links


def test_only_full_blocks_have_a_link():
    assert [len(links_of(range(n))) for n in (0, 15, 16, 31, 32)] == [0, 0, 1, 1, 2]


def test_extending_adds_to_the_same_chain():
    links = links_of(range(16))
    first = links[0]
    extend(links, list(range(48)), ROOT)
    assert links[0] is first
    assert [link.key for link in links] == [link.key for link in links_of(range(48))]


def test_d05_keys_differ_in_every_field_and_where_fields_meet():
    other = (*IDS[:-1], 99)
    keys = [
        key_of(ROOT, b"", IDS),
        key_of(("model-2/float32", "ann"), b"", IDS),
        key_of(("model-1/fp8", "ann"), b"", IDS),
        key_of(("model-1/float32", "ben"), b"", IDS),
        key_of(("model-1/float32a", "nn"), b"", IDS),
        key_of(("ab", "c"), b"", IDS),
        key_of(("a", "bc"), b"", IDS),
        key_of(("", "abc"), b"", IDS),
        key_of(ROOT, b"", other),
        key_of(ROOT, key_of(ROOT, b"", IDS), IDS),
        key_of(ROOT, key_of(ROOT, b"", other), IDS),
        key_of(ROOT, key_of(("model-1/float32", "ben"), b"", IDS), IDS),
        key_of(ROOT, b"", (-1, *IDS[1:])),
        key_of(ROOT, b"", (2**32, *IDS[1:])),
    ]
    assert len(set(keys)) == len(keys)
    assert key_of(ROOT, b"", IDS) == keys[0]


def test_d05_a_forced_collision_is_a_miss(monkeypatch):
    monkeypatch.setattr(chain, "digest", lambda data: b"the same for all")
    pool = BlockPool(8)
    mine = links_of(range(32))
    for number, block in enumerate(pool.allocate(2)):
        pool.publish(block, mine, number)
    assert pool.match(links_of(range(32))) == [0]  # the second never got a place of its own
    for ids, root in [(range(100, 132), ROOT), (range(32), ("model-2/float32", "ann")), (range(32), (KV, "ben"))]:
        assert pool.match(links_of(ids, root)) == []


def test_d05_the_same_block_after_another_beginning_is_a_miss(monkeypatch):
    pool = BlockPool(8)
    monkeypatch.setattr(chain, "digest", lambda data: data[-128:])  # the key is only the block's own ids
    ones, twos = links_of([1] * 16 + [5] * 16), links_of([2] * 16 + [5] * 16)
    for number, block in enumerate(pool.allocate(2)):
        pool.publish(block, ones, number)
    pool.publish(pool.allocate(1)[0], twos, 0)
    assert ones[1].key == twos[1].key
    assert pool.match(links_of([1] * 16 + [5] * 16)) == [0, 1]
    assert pool.match(links_of([2] * 16 + [5] * 16)) == [2]


def test_d05_answers_stay_right_when_all_keys_are_the_same(monkeypatch):
    monkeypatch.setattr(chain, "digest", lambda data: b"the same for all")
    world = World(num_blocks=16)
    for owner, first in itertools.product(world.owners, (1, 2, 3)):
        conversation = world.open(owner)
        world.send(conversation, *[first] * 20)
        world.finish()  # compares each answer with what it is alone
        world.send(conversation, first, 2, 3)
    world.finish()
    assert world.counts["length"] == 12


def test_links_are_the_same_by_what_stands_before_them_and_not_by_their_key():
    assert same(links_of(range(48))[2], links_of(range(48))[2])
    assert not same(links_of(range(48))[2], links_of([7, *range(1, 48)])[2])
    assert not same(links_of(range(48))[2], links_of(range(48), ("model-1/float32", "ben"))[2])
    assert not same(links_of(range(16))[0], None)


def test_common_prefix_is_found_wherever_two_lists_part():
    ids = list(range(100))
    for at in range(100):
        assert common_prefix(ids, [*ids[:at], -1, *ids[at + 1 :]]) == at
    assert common_prefix(ids, ids) == 100
    assert common_prefix(ids, ids[:40]) == common_prefix(ids[:40], ids) == 40
    assert common_prefix(ids, []) == 0
