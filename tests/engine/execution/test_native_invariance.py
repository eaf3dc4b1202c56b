"""The native path gives a prompt the same ids whatever else is computed with it, and however: the default model, 200
prompts of 5 to 200 tokens, half of them greedy and half drawn with a seed."""
import random
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from default_model import default_model_path
from native_path import native
from stepping import Answer, run, scheduler_for, sequence

from hamdam.engine.execution.native_runner import NativeRunner
from hamdam.engine.execution.packed_weights import open_packed
from hamdam.engine.loading.checkpoint import Checkpoint, open_checkpoint
from hamdam.engine.policy.sampling_params import SamplingParams
from hamdam.engine.policy.sequence import Sequence

pytestmark = pytest.mark.model
TEXT = """
    the of and a to in is it that was for on are with as his they be at one have this from or had by hot word but
    what some we can out other were all there when up use your how said an each she which do their time if will way
    about many then them write would like so these her long make thing see him two has look more day could go come
    did number sound no most people my over know water than call first who may down side been now find any new work
    Paris 1789 = + ( ) ; def return سلام جهان 東京 naïve café — “quoted” http://localhost:8000/
"""
WORDS = [*TEXT.split(), "\n", "\n\n"]
PROMPTS, TOKENS = 200, 8


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return open_checkpoint(default_model_path())


@pytest.fixture(scope="module")
def runners(checkpoint: Checkpoint) -> Iterator[list[NativeRunner]]:
    """Of one thread and of two, over the same weights."""
    weights = open_packed(checkpoint, None)
    with ExitStack() as stack:
        yield [
            stack.enter_context(native(checkpoint, threads=threads, weights=weights, kv_memory=512 << 20))
            for threads in (1, 2)
        ]


@pytest.fixture(scope="module")
def prompts(checkpoint: Checkpoint) -> list[list[int]]:
    chosen = random.Random(0)
    found = []
    for _ in range(PROMPTS):
        length = int(5 * 40 ** chosen.random())  # 5 to 200, shorter ones more often
        text = " ".join(chosen.choice(WORDS) for _ in range(length))
        found.append(checkpoint.tokenizer.encode(text, add_special_tokens=False).ids[:length])
    assert min(map(len, found)) == 5
    assert max(map(len, found)) > 190
    return found


def asked(id: int, prompt: list[int], *, turn: int = 0, max_tokens: int = TOKENS) -> Sequence:
    """The even ones greedy, the odd ones with a seed and parameters of their own. A `turn` is one of a session."""
    chosen = random.Random(id)
    params = SamplingParams(temperature=0)
    if id % 2:
        params = SamplingParams(
            temperature=chosen.choice((0.5, 1.0, 1.7)), top_p=chosen.choice((1.0, 0.9)),
            top_k=chosen.choice((0, 50)), min_p=chosen.choice((0, 0.02)),
        )
    chat = f"chat {id}" if turn else None
    return sequence(id + PROMPTS * turn, prompt, seed=7 * id, params=params, max_tokens=max_tokens, session_id=chat)


def ids_of(answers: list[Answer]) -> list[list[int]]:
    assert all(answer.reason == "length" for answer in answers)
    return [answer.ids for answer in answers]


@pytest.fixture(scope="module")
def alone(runners: list[NativeRunner], prompts: list[list[int]]) -> list[list[int]]:
    """What each is answered with nobody beside it, from its first token on, by one thread."""
    found = []
    for id, prompt in enumerate(prompts):
        found += ids_of(run(scheduler_for(runners[0]), runners[0], asked(id, prompt)))
    assert len({tuple(ids) for ids in found}) > PROMPTS // 2
    return found


def test_in_random_batches(runners: list[NativeRunner], prompts: list[list[int]], alone: list[list[int]]) -> None:
    chosen = random.Random(1)
    order = chosen.sample(range(PROMPTS), PROMPTS)
    found: dict[int, list[int]] = {}
    while order:
        some = [order.pop() for _ in range(min(len(order), chosen.randint(1, 64)))]
        answers = run(scheduler_for(runners[1]), runners[1], *(asked(id, prompts[id]) for id in some))
        found |= zip(some, ids_of(answers), strict=True)
    assert [found[id] for id in range(PROMPTS)] == alone


@pytest.mark.parametrize("budget", [48, 7])
def test_in_chunks_beside_others_that_decode(
    runners: list[NativeRunner], prompts: list[list[int]], alone: list[list[int]], budget: int
) -> None:
    count = PROMPTS if budget > 10 else PROMPTS // 12
    scheduler = scheduler_for(runners[1], max_batch_tokens=budget)
    answers = run(scheduler, runners[1], *(asked(id, prompts[id]) for id in range(count)))
    assert ids_of(answers) == alone[:count]


def test_preempted_and_begun_again(
    runners: list[NativeRunner], prompts: list[list[int]], alone: list[list[int]]
) -> None:
    """Longer answers, for which there is no room side by side."""
    some = range(20)

    def long(id: int) -> Sequence:
        return asked(id, prompts[id], max_tokens=36)

    right = [ids_of(run(scheduler_for(runners[0]), runners[0], long(id)))[0] for id in some]
    assert [ids[:TOKENS] for ids in right] == [alone[id] for id in some]
    scheduler = scheduler_for(runners[1], num_blocks=20)
    assert ids_of(run(scheduler, runners[1], *map(long, some))) == right
    assert scheduler.stats().preemptions > 3


def test_over_blocks_of_the_same_prompt_that_others_computed(
    runners: list[NativeRunner], prompts: list[list[int]], alone: list[list[int]]
) -> None:
    half = range(PROMPTS // 2)
    scheduler = scheduler_for(runners[1])
    for _ in range(2):
        answers = run(scheduler, runners[1], *(asked(id, prompts[id]) for id in half))
        assert ids_of(answers) == alone[: len(half)]
    assert all(answers[id].cached >= (len(prompts[id]) - 1) // 16 * 16 for id in half)


def test_as_a_second_turn_of_a_conversation(
    runners: list[NativeRunner], prompts: list[list[int]], alone: list[list[int]]
) -> None:
    """The other half, over keys and values that decoding wrote, in blocks that are full in part."""
    half = range(PROMPTS // 2, PROMPTS)
    later = {id: [*prompts[id], *alone[id], *prompts[-1 - id][:9]] for id in half}
    anew = run(scheduler_for(runners[1]), runners[1], *(asked(id, later[id]) for id in half))
    assert all(answer.cached == 0 for answer in anew)

    scheduler = scheduler_for(runners[1])
    first = run(scheduler, runners[1], *(asked(id, prompts[id], turn=1) for id in half))
    assert ids_of(first) == alone[half.start :]
    second = run(scheduler, runners[1], *(asked(id, later[id], turn=2) for id in half))
    assert [answer.cached for answer in second] == [len(prompts[id]) + TOKENS - 1 for id in half]
    assert ids_of(second) == ids_of(anew)


def test_behind_a_beginning_that_many_share(
    runners: list[NativeRunner], prompts: list[list[int]], checkpoint: Checkpoint
) -> None:
    """As long as a system prompt, so that neighbours' keys are read once for several of them."""
    start = checkpoint.tokenizer.encode(" ".join(WORDS * 5), add_special_tokens=False).ids[:600]
    talks = [[*start[: 600 if id % 3 else 300], *prompts[id][:20]] for id in range(32)]
    right = []
    for id in range(0, 32, 4):
        right += ids_of(run(scheduler_for(runners[0]), runners[0], asked(id, talks[id])))
    scheduler = scheduler_for(runners[1])
    answers = run(scheduler, runners[1], *(asked(id, talks[id]) for id in range(32)))
    assert ids_of(answers)[::4] == right
    assert sum(answer.cached >= 288 for answer in answers) >= 30
