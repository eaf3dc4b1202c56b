"""The bench of kernels: ceilings first, then each operation over them; by a made-up clock, and on a tiny model."""
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from native_path import TINY
from tiny_models import write_folder

from hamdam.engine.bench import native_operations, operation, torch_operations
from hamdam.engine.bench.kernel_bench import measure_kernels
from hamdam.engine.bench.operation import Ceiling, KernelPoint, Operation, measure_source, time_of
from hamdam.engine.bench.phases import Phases
from hamdam.kernels.cpu.plan import PHASES


class Clock:
    """Moves only when an operation is called."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def takes(self, name: str, seconds: float, *, times: int = 1, **work: int) -> Operation:
        def call() -> None:
            self.now += seconds * times

        return Operation(name=name, bytes=work.get("bytes", 0), flops=work.get("flops", 0), call=call, times=times)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(operation.time, "perf_counter", clock.perf_counter)
    return clock


class Made:
    name = "made up"

    def __init__(self, clock: Clock) -> None:
        self.copy = clock.takes("copy", 0.010, bytes=1_000_000)
        self.product = clock.takes("product", 0.020, flops=4_000_000)
        self._clock = clock

    def operations(self) -> Iterator[Operation]:
        yield self._clock.takes("thin", 0.002, bytes=100_000, flops=100_000)
        yield self._clock.takes("thick", 0.100, bytes=100_000, flops=10_000_000)

    def finish(self) -> None:
        self._clock.now += 0.0


def test_an_operation_is_judged_by_the_longer_of_its_two_floors(clock: Clock) -> None:
    heard: list[str] = []
    ceiling, thin, thick = measure_source(Made(clock), told=heard.append)
    assert isinstance(ceiling, Ceiling)
    assert isinstance(thin, KernelPoint)
    assert isinstance(thick, KernelPoint)
    assert (ceiling.bytes_per_s, ceiling.flops_per_s) == (pytest.approx(1e8), pytest.approx(2e8))
    assert (thin.share, thin.bound) == (pytest.approx(0.5), "memory")
    assert (thick.share, thick.bound) == (pytest.approx(0.5), "arithmetic")
    assert heard == ["copy", "product", "thin", "thick"]
    assert ceiling.text == "made up: copy 0.1 GB/s, product 0 GFLOP/s"


def test_short_calls_are_timed_many_together_and_long_ones_few_times(clock: Clock) -> None:
    assert time_of(clock.takes("short", 1e-6), lambda: None).median == pytest.approx(1e-3)
    assert clock.now == pytest.approx(1e-6 * (operation.WARM_UP + 4000 * operation.SAMPLES))
    assert time_of(clock.takes("short", 1e-6, times=100), lambda: None).median == pytest.approx(1e-3)
    clock.now = 0.0
    assert time_of(clock.takes("long", 10.0), lambda: None).count == 3
    assert clock.now == pytest.approx(10.0 * (operation.WARM_UP + 3))


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Little is measured, and not often."""
    monkeypatch.setattr(operation, "SAMPLE_S", 0.0)
    monkeypatch.setattr(operation, "SAMPLES", 3)
    monkeypatch.setattr(torch_operations, "COPIED", 1 << 16)
    monkeypatch.setattr(torch_operations, "MULTIPLIED", {"cpu": 16})
    monkeypatch.setattr(torch_operations, "OUT_OF_CACHE", 1 << 16)
    monkeypatch.setattr(native_operations, "OUT_OF_CACHE", 1 << 16)
    monkeypatch.setattr(native_operations, "READ", 1 << 16)
    monkeypatch.setattr(native_operations, "TURNS", 10)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("_small")
def test_every_operation_of_a_model_is_measured(tmp_path: Path) -> None:
    ceiling, *points = measure_kernels(write_folder(tmp_path), device="cpu", threads=1, told=lambda name: None)
    assert isinstance(ceiling, Ceiling)
    names = [point.name for point in points if isinstance(point, KernelPoint)]
    assert len(names) == len(set(names)) == len(points)
    for kind in ("linear qkv", "linear output", "linear gate_up", "linear down", "linear head", "rms_norm", "rotary",
                 "silu_and_mul", "store_kv", "attention", "sample"):
        assert any(name.startswith(kind) for name in names), kind
    assert all(isinstance(point, KernelPoint) and point.share > 0 and point.ms.count == 3 for point in points)
    by_name = {point.name: point for point in points if isinstance(point, KernelPoint)}
    qkv = by_name["linear qkv, 16"]  # 4 heads and 2 × 2 KV heads of 8, from a hidden size of 32
    assert (qkv.flops, qkv.bytes) == (2 * 16 * 64 * 32, 4 * (64 * 32 + 16 * (32 + 64)))
    decode = by_name["attention, 16 × 128"]
    assert (decode.flops, decode.bytes) == (4 * 16 * 128 * 32, 16 * 128 * 2 * 16 * 4 + 2 * 16 * 32 * 4)
    piece = by_name["attention, 256 of 1024"]
    assert piece.flops == 4 * 32 * sum(range(1024 - 256 + 1, 1024 + 1))


@pytest.mark.usefixtures("_small")
def test_native_code_is_measured_part_by_part_and_in_whole_steps(tmp_path: Path) -> None:
    config = TINY | {"max_position_embeddings": 512}
    found = list(measure_kernels(write_folder(tmp_path, config), device="cpu", dtype="int16", threads=1, told=print))
    ceilings = [one for one in found if isinstance(one, Ceiling)]
    assert [ceiling.copy for ceiling in ceilings] == ["copy", "read", "read"]
    products, rows = (
        {one.name: one for one in found if isinstance(one, KernelPoint) and one.source == ceiling.source}
        for ceiling in ceilings[1:]
    )
    assert len(products) == 2 * 5 * 4
    for name in ("norm, quantise, 16", "rotary, store, 256", "attention, 64 × 1024", "merge, quantise, 256 of 1024",
                 "sample greedy, 16", "sample top_p 0.9, 16"):
        assert rows[name].share > 0
    qkv = products["qkv in 4 bits, 16"]  # 4 heads and 2 × 2 KV heads of 16, from a hidden size of 32, in two passes
    assert qkv.flops == 2 * 2 * 16 * 128 * 32
    assert qkv.bytes == 4 * 640 + 16 * (128 + 4 * 128)  # 4 panels; 64 bytes, 16 of facts and 8 of a set, up to a line
    assert rows["attention, 16 × 128"].bytes == 16 * 128 * 2 * 32 * 2 + 6 * 16 * 64
    steps = [one for one in found if isinstance(one, Phases)]
    assert [one.workload for one in steps] == ["decode 1 × 128", "decode 16 × 128", "decode 64 × 128", "prefill 256"]
    for one in steps:
        assert tuple(one.shares) == PHASES
        assert sum(one.shares.values()) == pytest.approx(1)
        assert all(share > 0 for share in one.shares.values())
        assert "int16 on cpu" in one.description
