"""Asked: answers of a random engine to one empty question, all of them at once, as a test looks at them. Not a test."""
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from hamdam.engine import Chat, ChatMessage, Engine, Finished, Owner, SamplingParams, Text

ANYONE = Owner("anyone", "root", max_running=None, max_queued=None)
CHAT = Chat((ChatMessage("user", ""),))


@dataclass(frozen=True, slots=True)
class Answer:
    text: str
    end: Finished


async def answer(engine: Engine, chat: Chat = CHAT, owner: Owner = ANYONE, **asked: Any) -> Answer:
    generation = await engine.submit(chat, SamplingParams.from_dict(asked), owner=owner)
    generation.start()
    events = [event async for event in generation]
    assert isinstance(events[-1], Finished)
    return Answer("".join(event.text for event in events if isinstance(event, Text)), events[-1])


def structured(**kind: Any) -> dict[str, Any]:
    return {"structured_outputs": kind}


def ids_of(engine: Engine, texts: Iterable[str]) -> list[int]:
    """Of texts that are one token each."""
    return [engine.codec.encode_text(text)[0] for text in texts]
