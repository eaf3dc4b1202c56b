"""Whose work it is: cache roots come from accounts, never from a body as it was sent."""
from hamdam.server.chat.owner import owner_of
from hamdam.server.people.identity import Identity
from hamdam.server.settings import Limits

ANA = Identity("user_ana", "ana", "member", key_id="key_1")
BACK_END = Identity("user_ana", "ana", "member", key_id="key_2", service=True)
LIMITS = Limits()


def test_d04_a_person_has_one_root_whatever_the_request_says() -> None:
    assert owner_of(ANA, LIMITS).cache_root == owner_of(ANA, LIMITS, "somebody").cache_root == "user_ana"
    assert (owner_of(ANA, LIMITS).max_running, owner_of(ANA, LIMITS).max_queued) == (2, 4)


def test_d04_a_service_keys_user_narrows_its_root_through_a_hash() -> None:
    roots = {owner_of(BACK_END, LIMITS, user).cache_root for user in (None, "", "a", "b", "user_bob", "user_ana")}
    assert len(roots) == 6
    assert not [root for root in roots if "bob" in root]
    assert owner_of(BACK_END, LIMITS, "a") == owner_of(BACK_END, LIMITS, "a")
    assert owner_of(BACK_END, LIMITS).max_running is None


def test_d04_two_pairs_are_never_written_alike() -> None:
    one = Identity("user_a", "", "member", key_id="k", service=True)
    other = Identity("user_ab", "", "member", key_id="k", service=True)
    assert owner_of(one, LIMITS, "bc").cache_root != owner_of(other, LIMITS, "c").cache_root
