"""House: what the rooms of the server may ask for, made once in app.py and passed down. It does nothing itself."""
from dataclasses import dataclass

from hamdam.engine import Engine

from .chat.owner import Owners
from .chat.turns import Turns
from .people.accounts import Accounts
from .people.authenticator import Authenticator
from .people.cookie import Cookie
from .people.setup_link import SetUp
from .settings import Settings
from .storage.database import Database


@dataclass(frozen=True, slots=True)
class House:
    settings: Settings
    engine: Engine
    database: Database
    owners: Owners
    cookie: Cookie
    authenticator: Authenticator
    accounts: Accounts
    set_up: SetUp
    turns: Turns
    boot_id: str  # another one after every start: clients see by it that the server was restarted
