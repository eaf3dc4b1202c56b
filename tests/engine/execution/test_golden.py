"""The default model in float32 against Hugging Face's implementation, token for token, by every way to compute one."""
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from default_model import default_model_path
from stepping import Answer, run, scheduler_for, sequence

from hamdam.engine.config import EngineConfig
from hamdam.engine.execution.model_runner import ModelRunner, load_runner
from hamdam.engine.loading.checkpoint import open_checkpoint

pytestmark = pytest.mark.model
TOO_CLOSE = 1e-3  # where the two best logits differ by less, the order of a sum decides


@dataclass(frozen=True)
class Golden:
    prompt: list[int]
    output: list[int]
    gaps: list[float]  # of each output token's logit to the second best


GOLDEN = [Golden(**case) for case in json.loads((Path(__file__).parents[2] / "fixtures/golden.json").read_text())]


@pytest.fixture(scope="module")
def runner() -> Iterator[ModelRunner]:
    path = default_model_path()
    config = EngineConfig(model=path, device="cpu", dtype="float32", kv_memory=256 << 20)
    runner = load_runner(open_checkpoint(path), config)
    yield runner
    runner.close()


def assert_golden(golden: Golden, answer: Answer) -> None:
    assert (answer.reason, len(answer.ids)) == ("length", len(golden.output))
    pairs = enumerate(zip(answer.ids, golden.output, strict=True))
    parted = next((step for step, (ours, theirs) in pairs if ours != theirs), None)
    assert parted is None or golden.gaps[parted] < TOO_CLOSE, f"token {parted} differs, and it was no close call"


def all_of(golden: list[Golden]) -> list:
    return [sequence(id, case.prompt, max_tokens=len(case.output)) for id, case in enumerate(golden)]


def test_twenty_chats_at_once_answer_as_the_reference_does(runner: ModelRunner) -> None:
    scheduler = scheduler_for(runner)
    for golden, answer in zip(GOLDEN, run(scheduler, runner, *all_of(GOLDEN)), strict=True):
        assert_golden(golden, answer)
    assert scheduler.stats().preemptions == 0


@pytest.mark.parametrize("case", range(0, len(GOLDEN), 5))
def test_a_chat_alone_in_chunks_then_over_its_cached_prefix(runner: ModelRunner, case: int) -> None:
    golden = GOLDEN[case]
    scheduler = scheduler_for(runner, max_batch_tokens=24)
    [computed] = run(scheduler, runner, *all_of([golden]))
    assert_golden(golden, computed)
    assert computed.cached == 0
    [reused] = run(scheduler, runner, *all_of([golden]))
    assert_golden(golden, reused)
    assert (len(golden.prompt) - 1) // 16 * 16 <= reused.cached < len(golden.prompt)


def test_prompts_in_chunks_beside_others_that_decode(runner: ModelRunner) -> None:
    scheduler = scheduler_for(runner, max_batch_tokens=40)
    for golden, answer in zip(GOLDEN, run(scheduler, runner, *all_of(GOLDEN)), strict=True):
        assert_golden(golden, answer)


def test_preempted_chats_resume_where_they_were(runner: ModelRunner) -> None:
    short = [golden for golden in GOLDEN if len(golden.prompt) < 64]
    scheduler = scheduler_for(runner, num_blocks=40)
    for golden, answer in zip(short, run(scheduler, runner, *all_of(short)), strict=True):
        assert_golden(golden, answer)
    assert scheduler.stats().preemptions > 0
