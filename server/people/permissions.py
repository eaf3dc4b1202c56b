"""Permissions: the one answer to "may they?", for HTTP and WebSocket alike. Whose a thing is, the queries know."""
from enum import Enum

from .identity import Forbidden, Identity


class Act(Enum):
    CHAT = "chat"  # read and write one's own conversations, ask the model
    OWN_ACCOUNT = "own account"  # one's sign-ins, keys and password
    SERVICE_KEY = "service key"  # make a key that speaks for many people


def may(identity: Identity, act: Act) -> bool:
    if act is Act.CHAT:
        return True
    # A key that leaks must not be able to make itself another, or to sign its owner out.
    signed_in = identity.login_id is not None
    if act is Act.OWN_ACCOUNT:
        return signed_in
    return signed_in and identity.role == "admin"


def require(identity: Identity, act: Act) -> None:
    if not may(identity, act):
        raise Forbidden()
