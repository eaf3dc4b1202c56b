"""Whose work it is: cache roots come from accounts and a secret, never from a body as it was sent."""
from hamdam.server.chat.owner import Owners
from hamdam.server.people.identity import Identity
from hamdam.server.settings import Limits

ANA = Identity("user_ana", "ana", "member", key_id="key_1")
BACK_END = Identity("user_ana", "ana", "member", key_id="key_2", service=True)
OWNERS = Owners(bytes(range(32)), Limits())


def test_d04_a_person_has_one_root_whatever_the_request_says() -> None:
    assert OWNERS.of(ANA) == OWNERS.of(ANA, "somebody")
    assert OWNERS.of(ANA).cache_root != OWNERS.of(Identity("user_bob", "bob", "member", key_id="key_3")).cache_root
    assert (OWNERS.of(ANA).max_running, OWNERS.of(ANA).max_queued) == (2, 4)


def test_d04_a_service_keys_user_narrows_its_root_through_a_hash() -> None:
    roots = {OWNERS.of(BACK_END, user).cache_root for user in (None, "", "a", "b", "user_bob", "user_ana")}
    assert len(roots) == 6
    assert not [root for root in roots if "bob" in root or "ana" in root]
    assert OWNERS.of(BACK_END, "a") == OWNERS.of(BACK_END, "a")
    assert (OWNERS.of(BACK_END).id, OWNERS.of(BACK_END).max_running) == ("user_ana", None)


def test_d04_two_pairs_are_never_written_alike() -> None:
    one = Identity("user_a", "", "member", key_id="k", service=True)
    other = Identity("user_ab", "", "member", key_id="k", service=True)
    assert OWNERS.of(one, "bc").cache_root != OWNERS.of(other, "c").cache_root


def test_d04_no_root_is_known_without_the_servers_secret() -> None:
    others = Owners(bytes(32), Limits())
    for identity in (ANA, BACK_END):
        assert OWNERS.of(identity, "a").cache_root != others.of(identity, "a").cache_root
