"""A run as the database has it, said again in events, for whoever comes when it is no longer in memory. No queries."""
from ..storage.tables import Message
from .ending import Ending
from .parts import Answered
from .protocol import ResponseCreated, ResponseSnapshot, RunEnd, RunState


def state_of(row: Message) -> RunState:
    return RunState(row.response_id or "", row.id, _status(row), row.last_sequence)


def created_of(row: Message) -> ResponseCreated:
    return ResponseCreated(**_ids(row), client_id=row.client_id, sequence_number=1)


def snapshot_of(row: Message) -> ResponseSnapshot:
    number = max(row.last_sequence - 1, 0)
    answered = Answered.of(row.parts)
    return ResponseSnapshot(
        **_ids(row),
        text=row.text,
        reasoning_text=answered.reasoning,
        function_calls=answered.function_calls,
        status=_status(row),
        sequence_number=number,
    )


def end_of(row: Message) -> RunEnd:
    reason, facts = row.finish_reason or "", {"usage": row.usage, "timings": row.timings, "error": row.error}
    ending = Ending(status=_status(row), finish_reason=reason, **facts)
    return ending.event(**_ids(row), sequence_number=row.last_sequence)


def _ids(row: Message) -> dict[str, str]:
    return {"response_id": row.response_id or "", "conversation_id": row.conversation_id, "item_id": row.id}


def _status(row: Message) -> str:
    """A row that says it is in progress, with no run in memory, was cut off."""
    return "interrupted" if row.status == "in_progress" else row.status
