"""Conversations over HTTP: pages, edits, deletion; and that every route and every event keeps to its owner."""
import typing

import pytest
from sqlalchemy import update
from starlette.routing import Route
from world import World, in_world

from hamdam.server.chat.client_events import AnyClientEvent
from hamdam.server.people.logins import create_login
from hamdam.server.storage.tables import User


@in_world()
async def test_the_list_and_the_messages_come_in_pages(world: World) -> None:
    key = await world.key("ana")
    async with world.client(key) as ana, world.http(key) as http:
        runs = [await ana.ask(f"say {n}") for n in range(3)]
        for n in range(2):
            await ana.ask(f"say more {n}", conversation_id=runs[0].conversation)
        page = (await http.get("/api/conversations", params={"limit": 2})).json()
        assert [c["title"] for c in page["data"]] == ["say 0", "say 2"]
        rest = (await http.get("/api/conversations", params={"limit": 2, "cursor": page["next_cursor"]})).json()
        assert ([c["title"] for c in rest["data"]], rest["next_cursor"]) == (["say 1"], None)
        url = f"/api/conversations/{runs[0].conversation}"
        late = (await http.get(url, params={"limit": 2})).json()
        assert ([i["text"] for i in late["items"]], late["has_more"]) == (["say more 1", "more 1"], True)
        early = (await http.get(url, params={"limit": 9, "before": late["items"][0]["id"]})).json()
        assert [i["text"] for i in early["items"]] == ["say 0", "0", "say more 0", "more 0"]
        assert set(early["items"][1]) >= {"id", "parent_id", "role", "status", "text", "usage", "created_at"}
        for wrong in ({"limit": "0"}, {"limit": "x"}, {"limit": "9999"}, {"limit": "-1"}):
            assert (await http.get(url, params=wrong)).status_code == 400
        assert (await http.get("/api/conversations", params={"cursor": "x"})).status_code == 400


@in_world(gate=True)
async def test_an_answer_that_is_being_written_can_be_read_as_far_as_it_is(world: World) -> None:
    key = await world.key("ana")
    async with world.client(key) as ana, world.http(key) as http:
        run = await ana.start("say one two")
        world.pass_steps(5)
        turn = world.turns.find(world.users["ana"], response_id=run.id)
        await world.until(lambda: turn.text.startswith("on"))
        answer = (await http.get(f"/api/conversations/{run.conversation}")).json()["items"][1]
        assert (answer["text"], answer["status"]) == (turn.text, "in_progress")


@in_world()
async def test_a_conversation_is_renamed_pinned_archived_and_its_branch_chosen(world: World) -> None:
    key = await world.key("ana")
    async with world.client(key) as ana, world.http(key) as http:
        run = await ana.ask("say one")
        other = await ana.ask(conversation_id=run.conversation)
        url = f"/api/conversations/{run.conversation}"

        async def edit(**fields: object) -> dict:
            answer = await http.patch(url, json=fields)
            assert answer.status_code == 200, answer.text
            return answer.json()["conversation"]

        before = (await http.get(url)).json()["conversation"]
        named = await edit(title="  کتاب‌ها\u202e و\n چای ")
        assert named["title"] == "کتاب‌ها و چای"
        assert named["revision"] > before["revision"]
        assert (await edit(pinned=True))["pinned"] is True
        assert (await edit(pinned=False, archived=True)) | {"revision": 0} == named | {"archived": True, "revision": 0}
        assert (await http.get("/api/conversations")).json()["data"] == []
        assert len((await http.get("/api/conversations", params={"archived": "true"})).json()["data"]) == 1
        assert other.item == named["active_leaf_id"]
        assert (await edit(active_leaf_id=run.item))["active_leaf_id"] == run.item
        for wrong, code in (
            ({"title": ""}, "invalid_field"),
            ({"title": "\u200e \n"}, "invalid_field"),
            ({"title": "x" * 201}, "invalid_field"),
            ({"title": 5}, "invalid_field"),
            ({"user_id": world.users["ana"]}, "invalid_field"),
            ({"active_leaf_id": "msg_none"}, "parent_not_found"),
        ):
            answer = await http.patch(url, json=wrong)
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, code)
        assert (await http.patch(url, content=b"{not")).json()["error"]["code"] == "invalid_json"
        assert (await http.patch(url, content=b"[" * 100_000)).status_code == 400


@in_world(gate=True)
async def test_d10_deleting_stops_what_runs_and_then_forgets_rows_and_blocks(world: World) -> None:
    key = await world.key("ana")
    async with world.client(key) as ana, world.http(key) as http:
        run = await ana.start("say one two three")
        world.pass_steps(4)
        assert (await http.delete(f"/api/conversations/{run.conversation}")).status_code == 204
        await run.finish()
        assert run.end["type"] == "response.cancelled"
        await ana.until("conversation.deleted", conversation_id=run.conversation)
        assert (await http.get(f"/api/conversations/{run.conversation}")).status_code == 404
        assert (await http.delete(f"/api/conversations/{run.conversation}")).status_code == 404
        world.open_gate()
        await world.until(lambda: world.engine.stats().sessions == 0 and not world.engine.stats().running)
        assert world.engine.stats().blocks_pinned == 0
        assert world.turns._reserved == {}


NAMED = {  # every route that names something: what that is, and what to send along
    ("GET", "/api/conversations/{id}"): ("conversation", None),
    ("PATCH", "/api/conversations/{id}"): ("conversation", {"title": "mine"}),
    ("DELETE", "/api/conversations/{id}"): ("conversation", None),
    ("DELETE", "/api/logins/{id}"): ("login", None),
    ("DELETE", "/api/keys/{id}"): ("key", None),
    ("GET", "/c/{id}"): (None, None),  # the page is the same for every id
    ("GET", "/v1/models/{id:path}"): (None, None),  # models belong to nobody
    ("GET", "/{path:path}"): (None, None),  # the files of the pages, or nothing
}
LISTS = ("/api/conversations", "/api/keys", "/api/logins")
EVENTS = {  # and of each event; None: it names nothing that could be somebody's
    "session.update": None,
    "conversation.subscribe": "conversation_not_found",
    "conversation.unsubscribe": None,
    "response.create": "conversation_not_found",
    "response.cancel": "response_not_found",
    "ping": None,
}


async def browser(world: World, name: str) -> dict[str, str]:
    """The headers of our own page, signed in."""
    async with world.database.write() as sql:
        secret = await create_login(sql, world.users[name])
    return {"cookie": f"hamdam={secret}", "origin": f"http://127.0.0.1:{world.port}"}


@pytest.mark.parametrize("role", ["member", "admin"])
def test_g07_every_route_keeps_to_its_owner(tmp_path, role: str) -> None:
    """A new route that names something fails here until it has an entry in the matrix. Admins are others, too."""

    @in_world()
    async def scene(world: World) -> None:
        routes = {
            (method, route.path)
            for route in world.app.routes
            if isinstance(route, Route) and "{" in route.path
            for method in (route.methods or ()) if method != "HEAD"
        }  # fmt: skip
        assert routes == set(NAMED)
        ana_key, _ = await world.key("ana"), await world.key("bob")
        async with world.client(ana_key) as ana:
            run = await ana.ask("say secret")
        async with world.database.write() as sql:
            await sql.execute(update(User).where(User.name == "bob").values(role=role))
        ours, theirs = await browser(world, "ana"), await browser(world, "bob")
        async with world.http() as http:

            async def all_of_hers() -> list[dict]:
                paths = (*LISTS, f"/api/conversations/{run.conversation}")
                return [(await http.get(path, headers=ours)).json() for path in paths]

            before = await all_of_hers()
            ids = {kind: before[i]["data"][0]["id"] for i, kind in enumerate(("conversation", "key", "login"))}
            for (method, path), (kind, body) in NAMED.items():
                if kind is not None:
                    known, unknown = (path.format(id=id) for id in (ids[kind], f"{kind}_none"))
                    refused, nothing = [
                        await http.request(method, one, headers=theirs, json=body) for one in (known, unknown)
                    ]
                    assert (refused.status_code, refused.content) == (nothing.status_code, nothing.content), path
                    assert refused.status_code == 404
                    assert (await http.request(method, known, json=body)).status_code in (401, 403), "a stranger"
            for path in LISTS:
                seen = (await http.get(path, headers=theirs)).text
                assert not [private for private in ("secret", *ids.values()) if private in seen]
            assert await all_of_hers() == before

    scene(tmp_path)


@in_world()
async def test_g07_every_event_keeps_to_its_owner(world: World) -> None:
    """A new client event without an entry in the matrix fails here."""
    assert {event.__struct_config__.tag for event in typing.get_args(AnyClientEvent)} == set(EVENTS)
    async with world.client(await world.key("ana")) as ana, world.client(await world.key("bob")) as bob:
        run = await ana.ask("say secret")
        fields = {
            "conversation.subscribe": {"conversation_id": run.conversation},
            "response.create": {"conversation_id": run.conversation, "client_id": "x"},
            "response.cancel": {"response_id": run.id},
        }
        own = (await bob.ask("say mine")).conversation
        async with world.http(await world.key("bob")) as http:  # another's message as an edge, or as the leaf
            edge = await http.get(f"/api/conversations/{own}", params={"before": run.item})
            leaf = await http.patch(f"/api/conversations/{own}", json={"active_leaf_id": run.item})
            assert [said.json()["error"]["code"] for said in (edge, leaf)] == ["parent_not_found"] * 2
        for kind, code in EVENTS.items():
            if code is not None:
                error = await bob.refused(type=kind, **fields[kind])
                assert (error["code"], error["type"]) == (code, "not_found_error")
        await bob.send(type="ping")
        await bob.until("pong")
        assert "secret" not in str(bob.log)
        assert run.conversation not in str(bob.log)


@in_world()
async def test_a08_joiners_come_back_from_every_hop_as_they_were_sent(world: World) -> None:
    text = "می‌روم کتاب‌ها 👨‍👩‍👧"
    key = await world.key("ana")
    async with world.client(key) as ana, world.http(key) as http:
        run = await ana.ask(f"say {text}")
        assert list(run.text) == list(text)
        done = next(e for e in run.events if e["type"] == "response.output_text.done")
        assert done["text"] == text
        assert next(e for e in run.before if e["type"] == "conversation.item.added")["item"]["text"] == f"say {text}"
        page = (await http.get(f"/api/conversations/{run.conversation}")).json()
        assert [i["text"] for i in page["items"]] == [f"say {text}", text]
        assert page["conversation"]["title"] == f"say {text}"


@in_world()
async def test_d04_what_one_asked_is_in_nobody_elses_cache(world: World) -> None:
    text = "say " + "the quick brown fox jumps over the lazy dog. " * 12

    async def cached(name: str, **fields: object) -> int:
        async with world.client(await world.key(name)) as client:
            run = await client.ask(text, sampling={"max_tokens": 1}, **fields)
            return run.end["usage"]["input_tokens_details"]["cached_tokens"]

    assert await cached("ana") == 0
    assert await cached("ana") >= 480
    assert await cached("bob") == 0
    assert await cached("bob") >= 480
    asked = {"type": "response.create", "client_id": "x", "conversation": {}}
    async with world.client(await world.key("bob")) as bob:
        salt = {"cache_salt": world.users["ana"]}
        for salted in (salt, {"sampling": salt}, {"conversation": salt}):
            error = await bob.refused(**asked | salted)
            assert (error["code"], error["param"].rpartition(".")[2]) == ("invalid_field", "cache_salt")


@pytest.mark.parametrize("path", ["/api/conversations/x/y", "/api/conversation"])
def test_an_unknown_path_is_the_same_error_object(tmp_path, path: str) -> None:
    @in_world()
    async def scene(world: World) -> None:
        async with world.http(await world.key("ana")) as http:
            answer = await http.get(path)
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")

    scene(tmp_path)
