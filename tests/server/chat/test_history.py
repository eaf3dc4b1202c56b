"""History, places and saving over a real database: what is kept, found, walked, and forgotten."""
import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from msgspec import UNSET

from hamdam.engine import ChatMessage
from hamdam.server.chat.client_events import CreateResponse, InputMessage, InputText
from hamdam.server.chat.history import Changes, History
from hamdam.server.chat.place import chat_of, conversation_of, pack_ids, place_of, unpack_ids
from hamdam.server.chat.saving import NewRun, Saving, Written, recover
from hamdam.server.chat.shelves import Shelves
from hamdam.server.errors import ApiError
from hamdam.server.people.accounts import add_user
from hamdam.server.storage.database import Database
from hamdam.server.storage.ids import new_id
from hamdam.server.storage.tables import Message

ASK = [InputMessage(role="user", content=[InputText("Hi")])]


def written(run: NewRun, text: str, **fields: object) -> Written:
    names = {"message_id": run.answer_id, "response_id": run.response_id, "conversation_id": run.conversation_id}
    given = {"last_sequence": 5, "token_ids": pack_ids([1, 2]), "ids_fingerprint": "f"} | fields
    return Written(**names, text=text, **given)


class Books:
    """A database with two people in it, and shorthands to write a talk."""

    def __init__(self, database: Database, ana: str, bob: str) -> None:
        shelves = Shelves(database)
        self.database, self.history, self.saving = database, History(shelves), Saving(shelves)
        self.ana, self.bob = ana, bob

    async def begin(self, conversation: str | None = None, *, question: str = "Hi", **fields: object) -> NewRun:
        run = NewRun(
            **{
                "user_id": self.ana, "conversation_id": conversation or new_id("conv"), "response_id": new_id("resp"),
                "answer_id": new_id("msg"), "client_id": new_id("client"), "model": "m", "parent_id": None,
                "question_id": new_id("msg"), "question": (question,), "new_conversation": conversation is None,
            } | fields
        )  # fmt: skip
        await self.saving.begin(run)
        return run

    async def talk(self, turns: int = 1, **fields: object) -> list[NewRun]:
        runs: list[NewRun] = []
        for number in range(turns):
            where = {"conversation": runs[-1].conversation_id, "parent_id": runs[-1].answer_id} if runs else {}
            runs.append(await self.begin(**where, question=f"question {number}", **fields))
            await self.end(runs[-1], f"answer {number}")
        return runs

    async def end(self, run: NewRun, text: str, **fields: object) -> None:
        await self.saving.finish(written(run, text, **{"status": "completed"} | fields))

    async def place(self, user_id: str, **asked: object):
        event = CreateResponse(client_id="c", **asked)
        async with self.database.read() as sql:
            conversation = await conversation_of(sql, user_id, event)
            return await place_of(sql, conversation, event)


def with_books(test: Callable[..., Awaitable[None]]) -> Callable[[Path], None]:
    def run(tmp_path: Path) -> None:
        async def scene() -> None:
            database = await Database.open(tmp_path / "hamdam.db")
            try:
                async with database.write() as sql:
                    users = [(await add_user(sql, name, "x", role="member")).id for name in ("ana", "bob")]
                await test(Books(database, *users))
            finally:
                await database.close()

        asyncio.run(scene())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@with_books
async def test_a_turn_begins_with_its_question_and_an_empty_answer(books: Books) -> None:
    run = await books.begin(question="What is it?")
    conversation, items, more = await books.history.items(books.ana, run.conversation_id)
    assert (conversation.title, conversation.active_leaf_id, more) == ("What is it?", run.answer_id, False)
    assert [(i.role, i.text, i.status, i.parent_id) for i in items] == [
        ("user", "What is it?", "completed", None),
        ("assistant", "", "in_progress", run.question_id),
    ]


@with_books
async def test_a08_joiners_are_stored_and_read_as_they_were_sent(books: Books) -> None:
    text = "می‌روم 👨‍👩‍👧 کتاب‌ها"
    run = await books.begin(question=text)
    await books.end(run, text)
    conversation, items, _ = await books.history.items(books.ana, run.conversation_id)
    assert [list(item.text) for item in items] == [list(text)] * 2
    assert conversation.title == text


@with_books
async def test_items_come_in_creation_order_and_in_pages(books: Books) -> None:
    runs = await books.talk(5)
    _, whole, _ = await books.history.items(books.ana, runs[0].conversation_id)
    order = [item.id for item in whole]
    assert order == [id for run in runs for id in (run.question_id, run.answer_id)]
    assert sorted(whole, key=lambda item: item.created_at) == whole
    _, last, more = await books.history.items(books.ana, runs[0].conversation_id, limit=3)
    assert ([i.id for i in last], more) == (order[-3:], True)
    _, first, more = await books.history.items(books.ana, runs[0].conversation_id, before=order[3], limit=3)
    assert ([i.id for i in first], more) == (order[:3], False)


@with_books
async def test_the_list_pages_through_all_conversations_once(books: Books) -> None:
    made = [(await books.talk())[0].conversation_id for _ in range(7)]
    await books.history.edit(books.ana, made[2], Changes(pinned=True))
    await books.history.edit(books.ana, made[4], Changes(archived=True))
    seen, cursor, pages = [], None, 0
    while pages == 0 or cursor:
        page, cursor = await books.history.conversations(books.ana, cursor=cursor, limit=2)
        seen += [c.id for c in page]
        pages += 1
    assert seen == [made[2], *(c for c in reversed(made) if c not in (made[2], made[4]))]
    archived, _ = await books.history.conversations(books.ana, archived=True)
    assert [c.id for c in archived] == [made[4]]
    assert await books.history.conversations(books.bob) == ([], None)


@pytest.mark.parametrize("cursor", ["", "x", "1.2", "2.5.conv", "1..conv", "1.99999999999999999999.c", "0.-5.c"])
def test_a_cursor_that_is_none_is_refused(tmp_path: Path, cursor: str) -> None:
    @with_books
    async def scene(books: Books) -> None:
        with pytest.raises(ApiError) as refused:
            await books.history.conversations(books.ana, cursor=cursor)
        assert refused.value.param == "cursor"

    scene(tmp_path)


@with_books
async def test_g07_nothing_of_somebody_else_is_found_or_changed(books: Books) -> None:
    run = (await books.talk())[0]
    history, conversation = books.history, run.conversation_id
    for attempt in (
        history.conversation(books.bob, conversation),
        history.items(books.bob, conversation),
        history.edit(books.bob, conversation, Changes(title="mine now")),
        history.delete(books.bob, conversation),
        books.place(books.bob, conversation_id=conversation, input=ASK),
        books.begin(conversation, user_id=books.bob),
    ):
        with pytest.raises(ApiError) as refused:
            await attempt
        assert refused.value.code == "conversation_not_found"
    for names in ({"message_id": run.answer_id}, {"response_id": run.response_id}, {"client_id": run.client_id}):
        assert await history.answer(books.bob, **names) is None
        assert (await history.answer(books.ana, **names)).id == run.answer_id
    with pytest.raises(ApiError, match="no such answer"):
        await books.place(books.bob, continue_=run.answer_id)
    assert (await history.conversation(books.ana, conversation)).title == "question 0"


@with_books
async def test_g07_a_message_of_another_conversation_is_no_parent_and_no_leaf(books: Books) -> None:
    one, other = (await books.talk())[0], (await books.talk())[0]
    with pytest.raises(ApiError) as refused:
        await books.place(books.ana, conversation_id=one.conversation_id, parent_id=other.answer_id, input=ASK)
    assert refused.value.code == "parent_not_found"
    with pytest.raises(ApiError) as refused:
        await books.history.edit(books.ana, one.conversation_id, Changes(active_leaf_id=other.answer_id))
    assert refused.value.code == "parent_not_found"


@with_books
async def test_a_deleted_conversation_leaves_no_text_behind(books: Books) -> None:
    run = (await books.talk(3))[0]
    await books.history.delete(books.ana, run.conversation_id)
    with pytest.raises(ApiError):
        await books.history.conversation(books.ana, run.conversation_id)
    with sqlite3.connect(books.database.path) as sql:
        assert sql.execute("SELECT count(*) FROM messages").fetchone() == (0,)
        assert sql.execute("SELECT count(*) FROM conversations").fetchone() == (0,)


@with_books
async def test_g20_a_conversation_of_thousands_of_messages_is_read_in_pages_walked_and_deleted(books: Books) -> None:
    first = (await books.talk())[0]
    parent = first.answer_id
    async with books.database.write() as sql:
        for number in range(3_000):
            sql.add(Message(
                id=f"msg_{number}", user_id=books.ana, conversation_id=first.conversation_id, parent_id=parent,
                role="assistant" if number % 2 else "user", status="completed", text=str(number), created_at=number,
            ))  # fmt: skip
            parent = f"msg_{number}"
    _, items, has_more = await books.history.items(books.ana, first.conversation_id)
    last = [*map(str, range(2_902, 3_000)), "question 0", "answer 0"]
    assert ([item.text for item in items], has_more) == (last, True)
    place = await books.place(books.ana, conversation_id=first.conversation_id, parent_id=parent, input=ASK)
    assert len(place.path) == 3_002
    assert [m.text for m in place.path[:3]] == ["question 0", "answer 0", "0"]
    await books.history.delete(books.ana, first.conversation_id)
    assert await books.history.conversations(books.ana) == ([], None)


@with_books
async def test_a_question_goes_below_the_leaf_below_any_message_or_as_a_new_root(books: Books) -> None:
    one, two = await books.talk(2)
    conversation = one.conversation_id
    leaf = await books.place(books.ana, conversation_id=conversation, input=ASK)
    assert (leaf.parent_id, [m.id for m in leaf.path][-1]) == (two.answer_id, two.answer_id)
    branch = await books.place(books.ana, conversation_id=conversation, parent_id=one.answer_id, input=ASK)
    assert [m.id for m in branch.path] == [one.question_id, one.answer_id]
    root = await books.place(books.ana, conversation_id=conversation, parent_id=None, input=ASK)
    assert (root.parent_id, root.path) == (None, ())


@with_books
async def test_without_a_question_the_question_above_is_answered_again(books: Books) -> None:
    one, two = await books.talk(2)
    conversation = one.conversation_id
    again = await books.place(books.ana, conversation_id=conversation)
    assert (again.parent_id, again.path[-1].id) == (two.question_id, two.question_id)
    named = await books.place(books.ana, conversation_id=conversation, parent_id=one.question_id)
    assert [m.id for m in named.path] == [one.question_id]
    for parent in (one.answer_id, None):
        with pytest.raises(ApiError) as refused:
            await books.place(books.ana, conversation_id=conversation, parent_id=parent)
        assert refused.value.param == "parent_id"


@with_books
async def test_only_a_cut_answer_without_a_follow_up_goes_on(books: Books) -> None:
    one, two = await books.talk(2)
    for run, why in ((one, "cut"), (two, "cut")):
        with pytest.raises(ApiError, match=why):
            await books.place(books.ana, continue_=run.answer_id)
    for status in ("incomplete", "cancelled", "interrupted", "failed"):
        await books.end(two, "answer 1", status=status)
        place = await books.place(books.ana, continue_=two.answer_id)
        assert (place.continued.id, place.path[-1].id) == (two.answer_id, two.answer_id)
        assert chat_of(place, None, {}).continue_last
    await books.end(one, "answer 0", status="cancelled")
    with pytest.raises(ApiError, match="went on below"):
        await books.place(books.ana, continue_=one.answer_id)
    with pytest.raises(ApiError):
        await books.place(books.ana, continue_=one.question_id)


@with_books
async def test_the_engine_is_given_texts_parts_ids_and_instructions(books: Books) -> None:
    run = await books.begin()
    await books.end(run, "Hello", token_ids=pack_ids([72, 105]), ids_fingerprint="print")
    place = await books.place(books.ana, conversation_id=run.conversation_id, input=ASK, instructions="Be brief.")
    chat = chat_of(place, ("one ", "two"), {})
    assert [(m.role, m.content) for m in chat.messages] == [
        ("system", "Be brief."), ("user", "Hi"), ("assistant", "Hello"), ("user", ("one ", "two")),
    ]  # fmt: skip
    assert (chat.messages[2].token_ids, chat.messages[2].fingerprint) == ((72, 105), "print")
    newer = chat_of(place, None, {run.answer_id: ChatMessage("assistant", "Hello there")})
    assert (newer.messages[2].content, newer.messages[2].token_ids) == ("Hello there", None)


@with_books
async def test_instructions_stay_with_the_conversation_until_others_come(books: Books) -> None:
    first = await books.begin(instructions="Be brief.")
    await books.end(first, "Yes.")
    assert (await books.place(books.ana, conversation_id=first.conversation_id, input=ASK)).instructions == "Be brief."
    second = await books.begin(first.conversation_id, parent_id=first.answer_id, instructions="Be long.")
    await books.end(second, "Well …")
    assert (await books.place(books.ana, conversation_id=first.conversation_id, input=ASK)).instructions == "Be long."


@with_books
async def test_running_answers_are_saved_together_and_ended_ones_left_alone(books: Books) -> None:
    runs = [await books.begin() for _ in range(3)]
    await books.end(runs[0], "the end")
    await books.saving.save([written(run, "half") for run in runs])
    texts = [(await books.history.answer(books.ana, message_id=r.answer_id)).text for r in runs]
    assert texts == ["the end", "half", "half"]


@with_books
async def test_g04_what_ran_when_the_server_died_is_interrupted_and_keeps_its_text(books: Books) -> None:
    done, cut = await books.begin(), await books.begin()
    await books.end(done, "whole")
    await books.saving.save([written(cut, "half", last_sequence=7)])
    assert await recover(books.database) == 1
    row = await books.history.answer(books.ana, message_id=cut.answer_id)
    assert (row.status, row.text, row.last_sequence) == ("interrupted", "half", 8)
    assert (await books.history.answer(books.ana, message_id=done.answer_id)).status == "completed"
    assert await recover(books.database) == 0


@with_books
async def test_the_end_of_a_run_whose_conversation_is_gone_goes_nowhere(books: Books) -> None:
    run = await books.begin()
    await books.history.delete(books.ana, run.conversation_id)
    assert await books.saving.finish(written(run, "x", status="completed")) is None
    with pytest.raises(ApiError):
        await books.begin(run.conversation_id)


def test_ids_are_packed_as_little_endian_words() -> None:
    assert pack_ids([1, 258]) == b"\x01\x00\x00\x00\x02\x01\x00\x00"
    assert unpack_ids(pack_ids((0, 2**32 - 1))) == (0, 2**32 - 1)
    assert UNSET is CreateResponse(client_id="c").parent_id
