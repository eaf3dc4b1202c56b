"""Permissions: one table for all ways in. A key may talk, and never touch the account it belongs to."""
import pytest

from hamdam.server.people.identity import Forbidden, Identity
from hamdam.server.people.permissions import Act, may, require

MEMBER = Identity("u", "ana", "member", login_id="l")
ADMIN = Identity("u", "boss", "admin", login_id="l")
KEY = Identity("u", "boss", "admin", key_id="k")
SERVICE = Identity("u", "boss", "admin", key_id="k", service=True)


@pytest.mark.parametrize(
    ("act", "allowed"),
    [
        (Act.CHAT, [MEMBER, ADMIN, KEY, SERVICE]),
        (Act.OWN_ACCOUNT, [MEMBER, ADMIN]),
        (Act.SERVICE_KEY, [ADMIN]),
    ],
)
def test_who_may_do_what(act: Act, allowed: list[Identity]) -> None:
    for identity in (MEMBER, ADMIN, KEY, SERVICE):
        assert may(identity, act) == (identity in allowed)
        if identity in allowed:
            require(identity, act)
        else:
            with pytest.raises(Forbidden):
                require(identity, act)


def test_every_act_has_its_line_above() -> None:
    assert set(Act) == {Act.CHAT, Act.OWN_ACCOUNT, Act.SERVICE_KEY}
