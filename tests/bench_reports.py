"""Made-up bench reports of all three kinds, for tests of how they are kept and shown. The figures mean nothing."""
from collections.abc import Iterable

from hamdam.engine import Ceiling, Figure, KernelPoint, Machine, Phases, Point, Skipped, Spread, Workload, ratios
from hamdam.server.operations.bench.report.reports import (
    SCHEMA,
    About,
    Against,
    ChatReport,
    EngineReport,
    KernelReport,
)
from hamdam.server.operations.bench.traffic.chat_run import ChatRun, TurnFigures
from hamdam.server.operations.bench.traffic.load import Load


def made_about(kind: str, *, model: str = "tiny", load: float = 0.0) -> About:
    machine = Machine(cpu="A CPU", cores=2, memory=1 << 30, system="Linux", python="3.11", torch="2.11", load=load)
    return About(
        kind=kind, schema=SCHEMA, at="2026-01-02T03:04:05+00:00", version="0.1.0", commit="abc1234", machine=machine,
        model=model, description="float32 on cpu", threads=2, options={"repeats": 5, "quick": False},
    )


def spread(*values: float) -> Spread:
    return Spread.of(values or (1.0, 2.0, 3.0))


def made_point(workload: Workload, rate: float) -> Point:
    return Point(workload=workload, description="float32 on cpu", computed=64, sampled=64,
                 rate=spread(rate * 0.9, rate, rate * 1.1), step_ms=spread(), outside_ms=spread(0.01))


def engine_report(model: str = "tiny", **fields: object) -> EngineReport:
    work = [Workload(kind="decode", batch=batch, context=128) for batch in (1, 4)]
    points = [*(made_point(w, 100.0 * w.batch) for w in work), made_point(Workload(kind="prefill", prompt=512), 900.0)]
    return EngineReport(about=made_about("engine", model=model), points=tuple(points),
                        skipped=(Skipped(name="decode 64 × 1024", why="too large"),), **fields)


def made_run(rate: float = 100.0, *, errors: Iterable[str] = ()) -> ChatRun:
    turns = tuple(TurnFigures(turn=turn, ttft_ms=spread(10.0 * turn, 20.0 * turn), prompt_tokens=200, cached_tokens=50)
                  for turn in (1, 2))
    errors = tuple(errors)
    return ChatRun(seconds=1.0, answers=4, failed=len(errors), errors=errors, turns=turns, itl_ms=spread(5.0),
                   output_tokens=int(rate), prompt_tokens=400, cached_tokens=100)


def chat_report(**fields: object) -> ChatReport:
    return ChatReport(about=made_about("chat"), load=Load(users=2, turns=2), **{"runs": (made_run(),)} | fields)


def kernel_report(**fields: object) -> KernelReport:
    point = KernelPoint(source="Made, up", name="linear qkv, 16", bytes=100, flops=200, ms=spread(), of_copy=0.5,
                        of_product=0.25)
    shares = {"qkv": 0.25, "attention, of keys": 0.75}
    phases = tuple(Phases(workload=name, description="int8 on cpu, 2 threads", step_ms=spread(), shares=shares)
                   for name in ("decode 1 × 128", "prefill 256"))
    return KernelReport(about=made_about("kernels"), points=(point,), phases=phases,
                        ceilings=(Ceiling(source="Made, up", bytes_per_s=1e10, flops_per_s=1e11),), **fields)


def against(name: str = "theirs at http://peer", *, alternating: bool = True) -> Against:
    def side(rate: float) -> list[Figure]:
        return [Figure(name=f"decode {n} × 128", value=rate * n, unit="tok/s", more_is_better=True) for n in (1, 4)]

    pairs = [(side(100.0), side(50.0)), (side(110.0), side(50.0)), (side(90.0), side(60.0))]
    return Against(name=name, alternating=alternating, ratios=tuple(ratios(pairs)))


def every_report() -> list[EngineReport | ChatReport | KernelReport]:
    return [
        engine_report(), engine_report(against=against(), complete=False),
        chat_report(), chat_report(their_runs=(made_run(50.0),), against=against(alternating=False), complete=False),
        kernel_report(), kernel_report(complete=False),
        EngineReport(about=made_about("engine")), ChatReport(about=made_about("chat"), load=Load()),
        KernelReport(about=made_about("kernels")),
    ]
