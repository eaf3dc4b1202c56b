"""HTTP of people: set up, sign in and out, one's own sign-ins and keys. Reads bodies; the rest is done elsewhere."""
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import asdict
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ..chat.frames import invalid_field
from ..errors import ApiError
from ..house import House
from ..storage.clock import SECOND, now_us, rfc3339
from ..storage.tables import ApiKey, Login
from .audit import record
from .identity import Identity
from .keys import create_key, list_keys, revoke_key
from .logins import end_all_logins, end_login, end_login_of_secret, list_logins
from .permissions import Act, require
from .visitor import address_of, visitor_of

Body = TypeVar("Body", bound=Struct)
Short = Annotated[str, Meta(max_length=1024)]


class SetUpBody(Struct, forbid_unknown_fields=True):
    token: Short
    name: Short
    password: Short


class SignInBody(Struct, forbid_unknown_fields=True):
    name: Short
    password: Short


class KeyBody(Struct, forbid_unknown_fields=True):
    name: Short = ""
    service: bool = False
    expires_in_days: Annotated[int, Meta(ge=1, le=3650)] | None = None


class UserInfo(Struct):
    id: str
    name: str
    role: str


class Me(Struct):
    user: UserInfo


class LoginInfo(Struct):
    """A sign-in of a browser; `current` is the one that asks."""

    id: str
    agent: str
    created_at: str
    last_used_at: str
    current: bool


class Logins(Struct):
    data: list[LoginInfo]


class KeyInfo(Struct, kw_only=True):
    id: str
    prefix: str
    name: str
    service: bool
    created_at: str
    expires_at: str | None
    last_used_at: str | None


class NewKey(KeyInfo, kw_only=True):
    """Only here, and only once, the key itself."""

    key: str


class Keys(Struct):
    data: list[KeyInfo]


class Nothing(Struct):
    """What there is to say is in the status and the cookie."""


def people_routes(house: House) -> list[BaseRoute]:
    api = People(house)
    return [
        Route("/api/setup", api.set_up, methods=["POST"]),
        Route("/api/sign-in", api.sign_in, methods=["POST"]),
        Route("/api/sign-out", api.sign_out, methods=["POST"]),
        Route("/api/me", api.me),
        Route("/api/logins", api.logins),
        Route("/api/logins", api.end_logins, methods=["DELETE"]),
        Route("/api/logins/{id}", api.end_login, methods=["DELETE"]),
        Route("/api/keys", api.keys),
        Route("/api/keys", api.create_key, methods=["POST"]),
        Route("/api/keys/{id}", api.revoke_key, methods=["DELETE"]),
    ]


class People:
    def __init__(self, house: House) -> None:
        self.house = house

    async def set_up(self, request: Request) -> Response:
        body = await read_body(request, SetUpBody)
        visitor = visitor_of(request, self.house.cookie)
        secret = await self.house.set_up.redeem(body.token, body.name, body.password, visitor)
        return self._signed_in(secret, 201)

    async def sign_in(self, request: Request) -> Response:
        body = await read_body(request, SignInBody)
        visitor = visitor_of(request, self.house.cookie)
        return self._signed_in(await self.house.accounts.sign_in(body.name, body.password, visitor))

    async def sign_out(self, request: Request) -> Response:
        """Works for whoever holds the cookie, also where it is worth nothing any more: the browser forgets it."""
        secret = self.house.cookie.read(request)
        if secret is not None:
            async with self.house.database.write() as sql:
                await end_login_of_secret(sql, secret)
        response = Response(status_code=204)
        self.house.cookie.clear(response)
        return response

    async def me(self, request: Request) -> Response:
        identity = await self.house.authenticator.identify(request)
        return _json(Me(UserInfo(identity.user_id, identity.name, identity.role)))

    async def logins(self, request: Request) -> Response:
        identity = await self._owner(request)
        async with self.house.database.read() as sql:
            logins = await list_logins(sql, identity.user_id)
        return _json(Logins([_login(login, identity) for login in logins]))

    async def end_logins(self, request: Request) -> Response:
        """Sign out everywhere, here too."""
        identity = await self._owner(request)
        async with self.house.database.write() as sql:
            ended = await end_all_logins(sql, identity.user_id)
            record(sql, "all sign-ins ended", actor_id=identity.user_id, address=address_of(request), ended=ended)
        response = Response(status_code=204)
        self.house.cookie.clear(response)
        return response

    async def end_login(self, request: Request) -> Response:
        identity, login_id = await self._owner(request), request.path_params["id"]
        async with self.house.database.write() as sql:
            if not await end_login(sql, identity.user_id, login_id):
                raise ApiError("not_found", "There is no such sign-in.")
            record(sql, "sign-in ended", actor_id=identity.user_id, address=address_of(request), target=login_id)
        return Response(status_code=204)

    async def keys(self, request: Request) -> Response:
        identity = await self._owner(request)
        async with self.house.database.read() as sql:
            keys = await list_keys(sql, identity.user_id)
        return _json(Keys([_key(key) for key in keys]))

    async def create_key(self, request: Request) -> Response:
        identity, body = await self._owner(request), await read_body(request, KeyBody)
        if body.service:
            require(identity, Act.SERVICE_KEY)
        expires = None if body.expires_in_days is None else now_us() + body.expires_in_days * 86400 * SECOND
        async with self.house.database.write() as sql:
            row, key = await create_key(
                sql, identity.user_id, label=body.name, service=body.service, expires_at=expires
            )
            record(sql, "key created", actor_id=identity.user_id, address=address_of(request), target=row.id)
        return _json(NewKey(**asdict(_key(row)), key=key), 201)

    async def revoke_key(self, request: Request) -> Response:
        identity, key_id = await self._owner(request), request.path_params["id"]
        async with self.house.database.write() as sql:
            if not await revoke_key(sql, identity.user_id, key_id):
                raise ApiError("not_found", "There is no such key.")
            record(sql, "key revoked", actor_id=identity.user_id, address=address_of(request), target=key_id)
        return Response(status_code=204)

    async def _owner(self, request: Request) -> Identity:
        identity = await self.house.authenticator.identify(request)
        require(identity, Act.OWN_ACCOUNT)
        return identity

    def _signed_in(self, secret: str, status: int = 200) -> Response:
        response = _json(Nothing(), status)
        self.house.cookie.set(response, secret)
        return response


async def read_body(request: Request, kind: type[Body]) -> Body:
    """The body as `kind`; unknown fields are refused, so nothing internal can be set from outside."""
    try:
        return msgspec.json.decode(await request.body(), type=kind)
    except msgspec.ValidationError as error:
        raise invalid_field(error) from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise ApiError("invalid_json", "The body is not JSON.") from error


def _login(login: Login, viewer: Identity) -> LoginInfo:
    return LoginInfo(
        id=login.id,
        agent=login.agent,
        created_at=rfc3339(login.created_at),
        last_used_at=rfc3339(login.last_used_at),
        current=login.id == viewer.login_id,
    )


def _key(key: ApiKey) -> KeyInfo:
    return KeyInfo(
        id=key.id,
        prefix=key.prefix,
        name=key.label,
        service=key.service,
        created_at=rfc3339(key.created_at),
        expires_at=None if key.expires_at is None else rfc3339(key.expires_at),
        last_used_at=None if key.last_used_at is None else rfc3339(key.last_used_at),
    )


def _json(content: Struct, status: int = 200) -> Response:
    headers = {"cache-control": "no-store"}
    return Response(msgspec.json.encode(content), status, headers, media_type="application/json")
