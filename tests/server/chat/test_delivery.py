"""Cursors: what a follower gets of a turn, whatever its pace. No socket, no engine: a turn grown by hand."""
import asyncio
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from hamdam.engine import Usage
from hamdam.server.chat import delivery
from hamdam.server.chat.delivery import Cursor
from hamdam.server.chat.protocol import (
    ReasoningDelta,
    ResponseCompleted,
    ResponseInProgress,
    ResponsePrefill,
    ResponseSnapshot,
    TextDelta,
    TextDone,
)
from hamdam.server.chat.turn import Beginning, Names, Turn
from hamdam.server.logprobs import Likely, Listed

NAMES = Names(user_id="u", conversation_id="c", response_id="r", item_id="m", client_id="k")
TICK = 0.033


def a_turn(beginning: Beginning | None = None) -> Turn:
    return Turn(NAMES, SimpleNamespace(usage=Usage(), token_ids=()), "f", beginning)  # type: ignore[arg-type]


def write(turn: Turn, *pieces: str) -> None:
    for piece in pieces:
        turn._pieces.append(piece)
        turn.add(TextDelta, item_id="m", delta=piece)


def end(turn: Turn) -> None:
    turn.add(TextDone, item_id="m", text=turn.text)
    turn.add(ResponseCompleted, item_id="m")


def take(cursor: Cursor, now: float) -> list:
    events = []
    while event := cursor.next(now, TICK):
        events.append(event)
    return events


def test_the_first_text_goes_at_once_and_then_one_delta_a_tick() -> None:
    turn = a_turn()
    cursor = Cursor(turn, 0)
    write(turn, "The")
    assert [type(e).__name__ for e in take(cursor, 10.0)] == ["ResponseCreated", "TextDelta"]
    write(turn, " capital", " is")
    assert take(cursor, 10.001) == []
    assert cursor.waits
    assert cursor.due == 10.0 + TICK
    (delta,) = take(cursor, cursor.due)
    assert (delta.delta, delta.from_seq, delta.sequence_number) == (" capital is", 3, 4)
    write(turn, " Paris")
    (delta,) = take(cursor, 20.0)
    assert (delta.delta, delta.from_seq, delta.sequence_number) == (" Paris", None, 5)


def test_an_end_takes_the_waiting_text_with_it() -> None:
    turn = a_turn()
    cursor = Cursor(turn, 0)
    write(turn, "a")
    take(cursor, 10.0)
    write(turn, "b", "c")
    end(turn)
    events = take(cursor, 10.001)
    assert [e.sequence_number for e in events] == [4, 5, 6]
    assert [type(e).__name__ for e in events] == ["TextDelta", "TextDone", "ResponseCompleted"]
    assert cursor.drained


@pytest.mark.parametrize("seen", range(9))
def test_g04_from_any_number_on_a_follower_gets_the_rest_without_gap_or_repeat(seen: int) -> None:
    turn = a_turn()
    turn.add(ResponseInProgress, input_tokens=1, cached_tokens=0)
    write(turn, *"abcd")
    had = "".join(e.delta for e in turn.numbered[:seen] if isinstance(e, TextDelta))
    cursor = Cursor(turn, seen)
    live = take(cursor, 10.0)
    write(turn, *"ef")
    end(turn)
    live += take(cursor, 20.0)
    if seen > 6:  # it never had that: the run starts over with a snapshot
        assert isinstance(live[0], ResponseSnapshot)
        had, seen = live[0].text, live[0].sequence_number
        live = live[1:]
    for event in live:
        assert getattr(event, "from_seq", None) in (None, seen + 1)
        seen = event.sequence_number
    assert had + "".join(e.delta for e in live if isinstance(e, TextDelta)) == "abcdef"
    assert isinstance(live[-1], ResponseCompleted)


def test_a_newcomer_gets_a_snapshot_and_then_what_follows() -> None:
    turn = a_turn(Beginning("Once upon"))
    write(turn, " a", " time")
    cursor = Cursor(turn, None)
    (snapshot,) = take(cursor, 10.0)
    assert (snapshot.text, snapshot.sequence_number, snapshot.status) == ("Once upon a time", 3, "in_progress")
    write(turn, ".")
    assert [e.sequence_number for e in take(cursor, 20.0)] == [4]
    end(turn)
    late = take(Cursor(turn, None), 30.0)
    assert [(type(e).__name__, e.sequence_number) for e in late] == [("ResponseSnapshot", 5), ("ResponseCompleted", 6)]
    assert (late[0].text, late[0].status) == ("Once upon a time.", "completed")


def test_one_frame_is_bounded_however_much_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "MAX_DELTA", 10)
    turn = a_turn()
    cursor = Cursor(turn, 1)
    write(turn, *["abcd"] * 10, "x" * 40)
    end(turn)
    deltas = [e for e in take(cursor, 10.0) if isinstance(e, TextDelta)]
    assert [len(e.delta) for e in deltas] == [8] * 5 + [40]
    assert "".join(e.delta for e in deltas) == turn.text


def test_log_probabilities_stay_with_their_text_and_count_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    turn = a_turn()
    cursor = Cursor(turn, 1)
    likely = [Likely(token="x", logprob=-1.0, bytes=[120])]
    for number in range(6):
        own = Listed(token="a", logprob=-float(number), bytes=[97], top_logprobs=likely)
        turn.add(TextDelta, item_id="m", delta="a" if number < 5 else "", logprobs=[own])
    [delta] = take(cursor, 10.0)
    assert (delta.delta, [one.logprob for one in delta.logprobs]) == ("aaaaa", [0, -1, -2, -3, -4, -5])
    monkeypatch.setattr(delivery, "MAX_DELTA", 4 * delivery.LISTED + 2)  # of two tokens and what is beside them
    end(turn)
    deltas = [event for event in take(Cursor(turn, 1), 20.0) if isinstance(event, TextDelta)]
    assert [len(one.logprobs) for one in deltas] == [2, 2, 2]


def test_a_delta_without_log_probabilities_says_nothing_of_them() -> None:
    turn = a_turn()
    write(turn, "b")
    [delta] = take(Cursor(turn, 1), 10.0)
    assert delta.logprobs is None


def test_of_a_state_the_latest_is_enough_and_none_outlives_the_run() -> None:
    turn = a_turn()
    slow, quick = Cursor(turn, 1), Cursor(turn, 1)
    for done in (1, 2, 3):
        turn._tell(ResponsePrefill, 10.0, done=done, total=3)
        assert [e.done for e in take(quick, 10.0)] == [done]
    assert [e.done for e in take(slow, 10.0)] == [3]
    turn._tell(ResponsePrefill, 11.0, done=3, total=3)
    end(turn)
    assert not [e for e in take(slow, 12.0) if isinstance(e, ResponsePrefill)]


def test_followers_are_woken_by_every_event() -> None:
    woken: list[int] = []
    wake: Callable[[], None] = lambda: woken.append(1)  # noqa: E731
    turn = a_turn()
    turn.followers.add(wake)
    write(turn, "a", "b")
    assert len(woken) == 2
    assert not turn.ended.is_set()
    end(turn)
    assert turn.ended.is_set()
    assert asyncio.run(asyncio.wait_for(turn.ended.wait(), 1))


def test_thoughts_and_answer_that_waited_are_a_delta_each() -> None:
    turn = a_turn()
    cursor = Cursor(turn, 1)
    for piece in ("Hm", ", so"):
        turn.add(ReasoningDelta, item_id="m", delta=piece)
    write(turn, "Yes", ".")
    told = [(type(event).__name__, event.delta, event.from_seq, event.sequence_number) for event in take(cursor, 10.0)]
    assert told == [("ReasoningDelta", "Hm, so", 2, 3)]
    assert [(event.delta, event.from_seq) for event in take(cursor, cursor.due)] == [("Yes.", 4)]
