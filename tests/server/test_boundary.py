"""The boundary: headers on everything, foreign pages kept out, bodies bounded; for every route there is."""
import itertools

import httpx
import pytest
from lobby import PASSWORD, Lobby, in_lobby
from starlette.routing import Route
from starlette.testclient import TestClient, WebSocketDenialResponse

from hamdam.server.boundary import origin

OURS = "http://chat.test"
FOREIGN = [
    "https://evil.example",
    "null",
    "",
    "http://chat.test.evil.example",
    "http://evil.example/http://chat.test",
    "http://chat.test:8080",
    "https://chat.test",
    "http://CHAT.test",
    "http://chat.test.",
    "http://chat.test, http://evil.example",
    "chat.test",
]


def routes(lobby: Lobby) -> list[tuple[str, str]]:
    """Every method of every HTTP route of the app, with its path filled in."""
    found = [
        (method, route.path.replace("{id}", "x").replace("{path:path}", "x/y"))
        for route in lobby.app.routes
        if isinstance(route, Route)
        for method in sorted(route.methods or {"GET"})
    ]
    assert len(found) > 20
    return found


def guarded(said: httpx.Response) -> None:
    policy = {part.split(" ")[0]: part.split(" ")[1:] for part in said.headers["content-security-policy"].split("; ")}
    assert policy["default-src"] == ["'none'"]
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == policy["form-action"] == ["'self'"]
    assert policy["frame-ancestors"] == policy["base-uri"] == ["'none'"]
    assert policy["img-src"] == ["'self'", "blob:", "data:"]
    assert policy["trusted-types"] == ["dompurify", "hamdam"]
    assert "unsafe" not in said.headers["content-security-policy"]
    assert said.headers["x-content-type-options"] == "nosniff"
    assert said.headers["cross-origin-opener-policy"] == "same-origin"
    assert "referrer-policy" in said.headers and "permissions-policy" in said.headers
    assert "server" not in said.headers


@in_lobby()
async def test_every_answer_of_every_route_has_the_strict_policy(lobby: Lobby) -> None:
    async with lobby.browser() as somebody:
        for method, path in [*routes(lobby), ("GET", "/api/nothing"), ("PUT", "/api/me"), ("GET", "/nothing")]:
            said = await somebody.request(method, path)
            guarded(said)
            assert "strict-transport-security" not in said.headers
        guarded(await somebody.post("/api/sign-in", content=b"x" * (9 << 20)))
        guarded(await somebody.post("/api/sign-in", headers={"origin": "https://evil.example"}))


@in_lobby(public_url="https://chat.example.org")
async def test_under_https_browsers_are_told_to_stay_there(lobby: Lobby) -> None:
    async with lobby.browser() as somebody:
        assert (await somebody.get("/healthz")).headers["strict-transport-security"] == "max-age=31536000"


@in_lobby()
async def test_g05_no_unsafe_route_takes_a_foreign_page_s_request(lobby: Lobby) -> None:
    await lobby.person("ana")
    unsafe = [(m, p) for m, p in routes(lobby) if m not in ("GET", "HEAD", "OPTIONS")]
    assert len(unsafe) > 8
    async with lobby.browser("ana") as ana:
        for (method, path), foreign in itertools.product(unsafe, FOREIGN):
            said = await ana.request(method, path, headers={"origin": foreign})
            assert (said.status_code, said.json()["error"]["code"]) == (403, "forbidden"), (method, path, foreign)
        del ana.headers["origin"]
        for method, path in unsafe:
            assert (await ana.request(method, path)).status_code == 403, "a cookie without an Origin"
            for fetched_from in ("cross-site", "same-site", "none"):
                said = await ana.request(method, path, headers={"sec-fetch-site": fetched_from})
                assert said.status_code == 403, (method, path, fetched_from)
        assert (await ana.get("/api/me")).status_code == 200


@in_lobby()
async def test_our_own_pages_and_programs_pass(lobby: Lobby) -> None:
    await lobby.person("ana")
    key = await lobby.key("ana")
    credentials = {"name": "ana", "password": PASSWORD}
    async with lobby.program() as program:  # no browser at all
        assert (await program.post("/api/sign-in", json=credentials)).status_code == 200
    async with lobby.browser("ana") as ana:
        assert (await ana.post("/api/keys", json={})).status_code == 201
        del ana.headers["origin"]
        assert (await ana.post("/api/keys", json={}, headers={"sec-fetch-site": "same-origin"})).status_code == 201
    async with lobby.program(key) as program:  # a key is nothing that a browser adds by itself
        said = await program.post("/api/keys", json={}, headers={"origin": "https://evil.example"})
        assert "page of this server" not in said.json()["error"]["message"]


@in_lobby()
async def test_a_foreign_page_cannot_sign_somebody_in(lobby: Lobby) -> None:
    """There is no cookie yet, but the visitor would talk into the attacker's account."""
    await lobby.person("ana")
    async with lobby.program() as visitor:
        for headers in ({"origin": "https://evil.example"}, {"sec-fetch-site": "cross-site"}):
            said = await visitor.post("/api/sign-in", json={"name": "ana", "password": PASSWORD}, headers=headers)
            assert said.status_code == 403
            assert "set-cookie" not in said.headers


@in_lobby(public_url="https://chat.example.org")
async def test_a_public_url_is_the_only_origin_then(lobby: Lobby) -> None:
    await lobby.person("ana")
    async with lobby.browser("ana") as ana:
        assert (await ana.post("/api/keys", json={})).status_code == 201
        for foreign in ("http://chat.example.org", "https://chat.example.org:8000", "http://127.0.0.1:8000"):
            said = await ana.post("/api/keys", json={}, headers={"origin": foreign, "host": "127.0.0.1:8000"})
            assert said.status_code == 403, foreign


def sockets(lobby: Lobby) -> TestClient:
    return TestClient(lobby.app, base_url=OURS)


@in_lobby()
async def test_g05_a_cookie_s_socket_comes_from_our_own_page_or_not_at_all(lobby: Lobby) -> None:
    client = sockets(lobby)
    for origins in [None, *FOREIGN]:
        headers = {"cookie": "hamdam=x"} | ({} if origins is None else {"origin": origins})
        socket = client.websocket_connect("/ws", headers=headers, subprotocols=["hamdam.v1"])
        with pytest.raises(WebSocketDenialResponse) as refused, socket:
            pass
        assert refused.value.status_code == 403, origins
        guarded(refused.value)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://Chat.Test", "http://chat.test"),
        ("https://chat.test:443/", "https://chat.test"),
        ("http://chat.test:80", "http://chat.test"),
        ("http://chat.test:443", "http://chat.test:443"),
        ("http://[::1]:8000", "http://[::1]:8000"),
        ("http://10.0.0.1:8000", "http://10.0.0.1:8000"),
    ],
)
def test_an_origin_is_written_as_browsers_write_it(url: str, said: str) -> None:
    assert origin(url) == said


@in_lobby()
async def test_a_body_is_refused_by_the_length_it_says(lobby: Lobby) -> None:
    read = 0

    async def endless():
        nonlocal read
        while True:
            read += 1 << 20
            yield b"x" * (1 << 20)

    async with lobby.browser() as somebody:
        said = await somebody.post("/api/sign-in", content=endless(), headers={"content-length": str(9 << 20)})
        assert (said.status_code, said.json()["error"]["code"]) == (413, "too_large")
        assert read <= 1 << 20, "read although its length was known"


@in_lobby()
async def test_a_body_without_a_length_is_counted(lobby: Lobby) -> None:
    sent = 0

    async def chunks():
        nonlocal sent
        for _ in range(64):
            sent += 1 << 20
            yield b"x" * (1 << 20)

    async with lobby.browser() as somebody:
        said = await somebody.post("/api/sign-in", content=chunks())
        assert (said.status_code, said.json()["error"]["code"]) == (413, "too_large")
        assert sent <= 10 << 20


@in_lobby()
async def test_what_is_not_there_under_api_and_v1_is_said_as_an_error_object(lobby: Lobby) -> None:
    async with lobby.browser() as somebody:
        for path in ("/api/nothing", "/v1/nothing", "/api/", "/v1/", "/api/me/", "/api/keys/a/b"):
            said = await somebody.get(path)
            assert (said.status_code, said.json()["error"]["code"]) == (404, "not_found"), path
        wrong = (("PUT", "/api/me"), ("GET", "/api/sign-in"), ("PATCH", "/api/keys"), ("DELETE", "/v1/models"))
        for method, path in wrong:
            said = await somebody.request(method, path)
            assert (said.status_code, said.json()["error"]["code"]) == (405, "method_not_allowed"), path
            assert said.json()["error"]["type"] == "invalid_request_error"
            assert said.headers["allow"]
