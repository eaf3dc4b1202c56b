"""Driver: every workload through the real scheduler, and what is counted is exactly what the runner computed."""
from pathlib import Path
from typing import Any

import pytest
from scripted import ScriptedRunner, byte_tokenizer
from tiny_models import write_folder

from hamdam.engine.bench.driver import BenchError, Driver
from hamdam.engine.bench.engine_bench import measure, open_driver
from hamdam.engine.bench.workload import WARM_UP, Workload, workloads
from hamdam.engine.config import EngineConfig
from hamdam.engine.errors import ModelError
from hamdam.engine.policy.batch import Batch, Broken

DECODE = Workload(kind="decode", batch=4, context=32, steps=5)
PREFILL = Workload(kind="prefill", prompt=48)
MIXED = Workload(kind="mixed", batch=3, context=32, prompt=20, steps=4)


pytestmark = pytest.mark.usefixtures("one_by_one_and_ahead")


def driver(**runner: Any) -> Driver:
    return Driver(ScriptedRunner(byte_tokenizer(), **runner), EngineConfig(model=Path("scripted"), max_batch_tokens=32))


def quiet(done: int, total: int, label: str) -> None:
    assert 0 <= done <= total
    assert label


def test_decode_counts_one_token_a_sequence_and_step() -> None:
    ours = driver()
    counted = ours.repeat(DECODE)
    assert (counted.computed, counted.sampled) == (20, 20)
    assert len(counted.steps_ms) == len(counted.outside_ms) == 5
    last = ours.runner.batches[-5:]
    assert all([count for _, count in batch] == [1, 1, 1, 1] for batch in last)
    assert sum(counted.steps_ms) / 1e3 == pytest.approx(counted.seconds)


def test_a_repeat_finds_its_prompts_computed_and_computes_no_more_than_it_counts() -> None:
    ours = driver()
    ours.repeat(DECODE)
    before = ours.runner.computed
    ours.repeat(DECODE)
    assert ours.runner.computed - before == DECODE.batch * (WARM_UP + DECODE.steps)


def test_a_smaller_batch_uses_the_prompts_of_the_larger_one() -> None:
    ours = driver()
    ours.repeat(DECODE)
    before = ours.runner.computed
    ours.repeat(Workload(kind="decode", batch=2, context=32, steps=5))
    assert ours.runner.computed - before == 2 * (WARM_UP + 5)


def test_the_sequences_of_a_batch_have_blocks_of_their_own() -> None:
    ours = driver()
    seen: list[list[int]] = []

    def run(batch: Batch) -> list[int | Broken | None]:
        seen.extend(row.sequence.block_table.copy() for row in batch.rows if len(batch.rows) == DECODE.batch)
        return ScriptedRunner.run(ours.runner, batch)

    ours.runner.run = run
    ours.repeat(DECODE)
    tables = seen[-DECODE.batch :]
    assert len({block for table in tables for block in table}) == sum(map(len, tables))


def test_prefill_computes_a_new_prompt_each_time_in_pieces_of_the_budget() -> None:
    ours = driver()
    for _ in range(2):
        before = ours.runner.computed
        counted = ours.repeat(PREFILL)
        assert (counted.computed, counted.sampled, len(counted.steps_ms)) == (48, 1, 2)
        assert ours.runner.computed - before == 48
        assert [count for batch in ours.runner.batches[-2:] for _, count in batch] == [32, 16]


def test_a_mixed_step_holds_every_decoding_sequence_and_one_whole_prompt() -> None:
    ours = driver()
    counted = ours.repeat(MIXED)
    assert (counted.computed, counted.sampled) == (4 * (3 + 20), 4 * (3 + 1))
    assert all(sorted(count for _, count in batch) == [1, 1, 1, 20] for batch in ours.runner.batches[-4:])


def test_nothing_is_left_over_when_a_repeat_ends() -> None:
    ours = driver()
    for workload in (DECODE, PREFILL, MIXED, DECODE):
        ours.repeat(workload)
        assert not ours._scheduler.has_work
        ours._scheduler.check_integrity()


def test_what_does_not_fit_is_said_and_the_rest_is_measured() -> None:
    ours = driver(num_blocks=12, max_context=64)
    work = [DECODE, Workload(kind="decode", batch=64, context=32), Workload(kind="prefill", prompt=64), PREFILL]
    outcomes = list(measure(ours, work, repeats=1, progress=quiet))
    assert [bool(outcome.point) for outcome in outcomes] == [False, False, False, True]
    why = [outcome.skipped.why for outcome in outcomes if outcome.skipped]
    assert "KV memory has 12 blocks, and this needs 20" in why[0]
    assert "the model's context is 64 tokens, and this needs 67" in why[1]
    assert "the model's context is 64 tokens, and this needs 65" in why[2]


def test_every_workload_fits_the_blocks_that_it_asks_for() -> None:
    for workload in (*workloads((1, 4, 7), (16, 33), (48, 50), steps=9), MIXED):
        Driver(
            ScriptedRunner(byte_tokenizer(), num_blocks=workload.blocks, max_context=workload.longest),
            EngineConfig(model=Path("scripted"), max_batch_tokens=32),
        ).repeat(workload)


def test_a_broken_row_ends_the_bench() -> None:
    ours = driver()
    ours.runner.broken.add(2)
    with pytest.raises(BenchError, match="a row failed: not a number"):
        ours.repeat(DECODE)


def test_points_hold_exact_counts_and_a_spread_over_the_repeats() -> None:
    (outcome,) = measure(driver(), [DECODE], repeats=5, progress=quiet)
    point = outcome.point
    assert point is not None
    assert (point.computed, point.sampled, point.rate.count, point.step_ms.count) == (20, 20, 5, 25)
    assert point.description == "a script"
    assert (point.figure.name, point.figure.value) == ("decode 4 × 32", point.rate.median)


def test_a_workload_in_which_a_faster_path_became_ready_is_measured_again() -> None:
    ours = driver()
    run = ours.runner.run

    def changes(batch: Batch) -> list[int | Broken | None]:
        if ours.runner.steps == 30:
            ours.runner.description = "something faster"
        return run(batch)

    ours.runner.run = changes
    (outcome,) = measure(ours, [DECODE], repeats=5, progress=quiet)
    assert outcome.point is not None
    assert (outcome.point.description, outcome.point.rate.count) == ("something faster", 5)
    steps_of_a_pass = 6 * (WARM_UP + DECODE.steps)
    assert ours.runner.steps > 2 * steps_of_a_pass


def test_with_a_peer_the_two_take_turns_and_each_repeat_is_a_pair() -> None:
    order: list[str] = []

    class Side(Driver):
        def __init__(self, name: str, step_seconds: float) -> None:
            runner = ScriptedRunner(byte_tokenizer(), step_seconds=step_seconds)
            super().__init__(runner, EngineConfig(model=Path("scripted"), max_batch_tokens=32))
            self.name = name

        def repeat(self, workload: Workload) -> Any:
            order.append(self.name)
            return super().repeat(workload)

    (outcome,) = measure(Side("A", 0.0), [DECODE], repeats=3, theirs=Side("B", 0.002), progress=quiet)
    assert "".join(order) == "AB" + "ABABAB"
    assert outcome.ratio is not None
    assert (outcome.ratio.name, outcome.ratio.times.count) == ("decode 4 × 32", 3)
    assert outcome.ratio.times.median > 1


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("tiny"))


def test_a_real_model_is_measured_to_the_token(tiny: Path) -> None:
    work = [*workloads((1, 3), (32,), (40,), steps=4)[:-1], MIXED]
    ours, name = open_driver(tiny, work, device="cpu", threads=1)
    points = [outcome.point for outcome in measure(ours, work, repeats=5, progress=quiet)]
    assert name == tiny.name
    found = [(p.workload.name, p.computed, p.sampled, p.rate.count) for p in points if p]
    assert found == [
        ("decode 1 × 32", 4, 4, 5),
        ("decode 3 × 32", 12, 12, 5),
        ("prefill 40", 40, 1, 5),
        ("mixed 3 × 32 + 20", 92, 16, 5),
    ]
    assert all(p.rate.least > 0 and p.description == "float32 on cpu" for p in points if p)


def test_the_memory_is_what_the_largest_workload_needs_unless_said(tiny: Path) -> None:
    ours, _ = open_driver(tiny, [DECODE, PREFILL], device="cpu", threads=1)
    assert ours.runner.num_blocks == DECODE.blocks
    ours, _ = open_driver(tiny, [DECODE], device="cpu", threads=1, kv_memory=1 << 20)
    assert ours.runner.num_blocks == (1 << 20) // (2 * 2 * 16 * 2 * 8 * 4)


def test_a_model_that_is_none_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ModelError) as refused:
        open_driver(tmp_path / "none", [DECODE])
    assert "\n" not in str(refused.value)
