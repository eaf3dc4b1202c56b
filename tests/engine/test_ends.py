"""How an answer ends, through the whole Engine and the real sampler: end ids, stop strings, lengths, stops, seeds."""
import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from scripted import CHATML, byte_tokenizer, scripted_engine

from hamdam.engine import Chat, ChatMessage, Engine, EngineConfig, Finished, InvalidField, Owner, SamplingParams, Text
from hamdam.engine.execution.sampler import sample
from hamdam.engine.policy.batch import Batch
from hamdam.engine.text.codec import Codec
from hamdam.kernels.device import for_device

ANYONE = Owner("anyone", "anyone", max_running=None, max_queued=None)
TOKENIZER = byte_tokenizer()
START, END, OTHER_END = (TOKENIZER.token_to_id(text) for text in ("<|im_start|>", "<|im_end|>", "<|endoftext|>"))
A, B = (TOKENIZER.encode(letter).ids[0] for letter in "ab")
OPS = for_device(torch.device("cpu"))
Logits = Callable[[list[int], int], torch.Tensor]


def likes(**answer: int) -> Logits:
    """Greedy gives these, the first the most: `likes(first=END, then=A)`."""

    def logits(_ids: list[int], _num_prompt: int) -> torch.Tensor:
        row = torch.zeros(TOKENIZER.get_vocab_size())
        for place, id in enumerate(answer.values()):
            row[id] = 50.0 - place
        return row

    return logits


def by_position(ids: list[int], num_prompt: int) -> torch.Tensor:
    """Logits that depend on how long the answer is, and on nothing else; no end among what is likely."""
    row = torch.randn(TOKENIZER.get_vocab_size(), generator=torch.Generator().manual_seed(len(ids) - num_prompt))
    row[[START, END, OTHER_END]] = -50.0
    return row


@dataclass
class FakeModel:
    """A runner with made-up logits under the sampler that models have."""

    logits: Logits
    num_blocks: int = 256
    vocab_size: int = TOKENIZER.get_vocab_size()
    max_context: int = 512
    eos_ids: frozenset[int] = frozenset({END, OTHER_END})
    description: str = "fake"
    kv_fingerprint: str = "fake"

    def run(self, batch: Batch) -> list[Any]:
        sequences = [row.sequence for row in batch.rows if row.sample]
        if not sequences:
            return [None] * len(batch.rows)
        logits = torch.stack([self.logits(s.ids, s.num_prompt) for s in sequences])
        drawn = iter(sample(OPS, logits, sequences))
        return [next(drawn) if row.sample else None for row in batch.rows]

    def close(self) -> None:
        pass


def finished(logits: Logits, *asked: dict[str, Any]) -> list[tuple[str, Finished]]:
    """Text and end of each of these, which all run at once."""

    async def main() -> list[tuple[str, Finished]]:
        codec = Codec(TOKENIZER, CHATML, eos_ids=[END, OTHER_END])
        engine = Engine(EngineConfig(model=Path("fake")), codec, FakeModel(logits))
        engine.start()
        chat = Chat((ChatMessage("user", "Hi"),))
        try:
            running = [
                await engine.submit(chat, SamplingParams(**{"temperature": 0, "max_tokens": 9} | params), owner=ANYONE)
                for params in asked
            ]
            for generation in running:
                generation.start()
            events = [[event async for event in generation] for generation in running]
        finally:
            engine.stop()
        return [("".join(e.text for e in all if isinstance(e, Text)), all[-1]) for all in events]

    return asyncio.run(main())


@pytest.mark.parametrize("end", [END, OTHER_END])
def test_f01_each_end_id_ends_the_answer_and_is_no_part_of_it(end: int) -> None:
    def after_two(ids: list[int], num_prompt: int) -> torch.Tensor:
        return likes(first=end if len(ids) - num_prompt == 2 else A)(ids, num_prompt)

    [(text, stopped)] = finished(after_two, {})
    assert (text, stopped.reason, stopped.stop, stopped.token_ids) == ("aa", "stop", end, (A, A))
    assert stopped.usage.output_tokens == 3, "it was computed"


def test_f01_min_tokens_holds_back_every_end_and_stop_id() -> None:
    [(text, stopped)] = finished(
        likes(first=OTHER_END, second=END, third=B, fourth=A), {"min_tokens": 3, "stop_token_ids": (B,)}
    )
    assert (text, stopped.reason, stopped.stop) == ("aaa", "stop", OTHER_END)


def test_f01_under_ignore_eos_no_end_id_ends_it_and_none_is_text() -> None:
    for end in (END, OTHER_END):
        [(text, stopped)] = finished(likes(first=end), {"ignore_eos": True})
        assert (text, stopped.reason, stopped.token_ids) == ("", "length", (end,) * 9)
    [(text, stopped)] = finished(likes(first=B), {"ignore_eos": True, "stop_token_ids": (B,)})
    assert (text, stopped.reason, stopped.stop) == ("", "stop", B), "what was asked for still ends it"


def test_bad_words_are_not_said_and_an_included_stop_string_is() -> None:
    likes_ab = likes(first=A, second=B, third=END)
    asked: list[dict[str, Any]] = [
        {}, {"bad_words": ("a",)}, {"bad_words": ("aa",)}, {"bad_words": ("aab", "a", "b")},
        {"stop": ("aa",), "include_stop_str": True}, {"stop": ("aa",)},
    ]  # fmt: skip
    said = finished(likes_ab, *asked)
    assert [text for text, _ in said] == ["a" * 9, "b" * 9, "ab" * 4 + "a", "", "aa", ""]
    assert [(end.reason, end.stop) for _, end in said[3:]] == [("stop", END), ("stop", "aa"), ("stop", "aa")]


@pytest.mark.parametrize(
    ("field", "params"),
    [
        ("logit_bias", {"logit_bias": tuple((id, -100.0) for id in range(TOKENIZER.get_vocab_size()))}),
        ("logit_bias", {"logit_bias": ((A, -100.0),), "allowed_token_ids": (A,)}),
        ("allowed_token_ids", {"allowed_token_ids": (A, END), "logit_bias": ((A, -100.0),), "min_tokens": 1}),
        ("allowed_token_ids", {"allowed_token_ids": (TOKENIZER.get_vocab_size(),)}),
    ],
)
def test_what_leaves_nothing_to_draw_is_refused(field: str, params: dict[str, Any]) -> None:
    with pytest.raises(InvalidField) as refused:
        finished(likes(first=A), params)
    assert refused.value.name == field


def test_c08_one_answers_ends_are_not_anothers() -> None:
    asked: list[dict[str, Any]] = [
        {"ignore_eos": True}, {}, {"min_tokens": 4}, {"stop_token_ids": (A,)}, {"max_tokens": 1}, {},
    ]  # fmt: skip
    model = likes(first=END, second=A)
    together = finished(model, *asked)
    assert [end.reason for _, end in together] == ["length", "stop", "stop", "stop", "stop", "stop"]
    assert [len(end.token_ids) for _, end in together] == [9, 0, 4, 0, 0, 0]
    for params, (text, end) in zip(asked, together, strict=True):
        [(alone, its_end)] = finished(model, params)
        assert (alone, its_end.reason, its_end.token_ids) == (text, end.reason, end.token_ids)


def test_c01_a_seeded_answer_does_not_depend_on_neighbours_without_a_seed() -> None:
    seeded: dict[str, Any] = {"temperature": 0.8, "seed": 42, "max_tokens": 16, "ignore_eos": True}
    unseeded = seeded | {"seed": None}
    [(_, alone)] = finished(by_position, seeded)
    others = set()
    for _ in range(4):
        (_, again), (_, other) = finished(by_position, seeded, unseeded)
        assert again.token_ids == alone.token_ids
        others.add(other.token_ids)
    assert len(others | {alone.token_ids}) == 5, "without a seed each has one of its own"
    eight = finished(by_position, *[unseeded] * 4, seeded, *[unseeded | {"seed": 7}] * 3)
    assert eight[4][1].token_ids == alone.token_ids


@pytest.mark.parametrize("steps", range(1, 6))
@pytest.mark.parametrize("how", ["cancelled", "stopped", "failed", "length", "stop"])
def test_a04_a10_whatever_ends_it_the_withheld_tail_is_delivered_and_counted(how: str, steps: int) -> None:
    """The answer is `aabb…`, and everything in it may yet become the stop string "aabb!"."""

    async def main() -> None:
        engine = scripted_engine(lambda question: "aabbaabb"[:steps] if how == "stop" else "aabbaabb")
        gate = engine.runner.gate = threading.Semaphore(0)
        engine.start()
        params = SamplingParams(stop=("aabb!",), max_tokens=steps if how == "length" else None)
        generation = await engine.submit(Chat((ChatMessage("user", "Hi"),)), params, owner=ANYONE)
        generation.start()
        gate.release(steps)
        while generation.usage.output_tokens < steps:  # noqa: ASYNC110  (the other thread has no event to set)
            await asyncio.sleep(0.001)
        if how == "cancelled":
            generation.cancel()
        if how == "failed":
            engine.runner.broken.add(generation.sequence.id)
        gate.release(1000)
        if how == "stopped":
            generation.fail("the engine was stopped")
        events = [event async for event in generation]
        engine.stop()
        end = events[-1]
        assert isinstance(end, Finished)
        assert (end.reason, end.stop if how != "stop" else None) == (how, None)
        text = "".join(event.text for event in events if isinstance(event, Text))
        assert text == "aabbaabb"[:steps] == engine.codec.decode(end.token_ids)
        assert end.usage.output_tokens == steps + (how == "stop")  # and the end id
        assert end.usage.total_tokens == end.usage.input_tokens + end.usage.output_tokens

    asyncio.run(main())
