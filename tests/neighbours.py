"""What the engine's steps and the event loop do to each other in one process, and what hogs do to both. By hand.

    python tests/neighbours.py [--batch N,N] [--rounds N] [--seconds S] [--dtype …] [--threads N] [--json FILE]

The real model computes natively on a thread, step after step through the real scheduler. Beside it on the event loop,
in turn, round after round:
  alone     nothing
  sockets   50 connections, each woken every 20 ms, with nothing to say
  json      the same, and ten times a second somebody sends and gets 100 KB of JSON, as 50 people who open a long
            conversation every 5 s would
  events    50 connections, each sending a small event in JSON every 20 ms: 50 answers of 50 tokens a second
  hogs      nothing on the loop, but two processes that never wait
Who reads the events is a process of its own, which wakes ten times a second. What the hogs' share is, is measured too:
in every round as many processes as the engine has threads, that count and wait for nobody, alone and beside hogs.
Prints medians over rounds: of a step's mean time, and by how much it is longer than alone; how late the loop wakes up;
what the loop takes of a core. Ends with 1 where more is lost than may be: a tenth beside json, 20 ms of lag in 1 of 100
wakes, and beside hogs a tenth more than who waits for nobody loses. Events may cost what the loop takes. A machine that
does anything else tells nothing.
"""
import argparse
import asyncio
import contextlib
import json
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median

import conftest  # noqa: F401  (makes `hamdam` importable from a bare checkout)
import uvloop
from default_model import default_model_path

from hamdam.engine import Driver, Workload, open_driver, this_machine
from hamdam.engine.bench.spread import quantile

MODES = ("alone", "sockets", "json", "events", "hogs")
CONNECTIONS, EVERY_S, DOCUMENT_S, HOGS = 50, 0.020, 0.1, 2
EVENT = {"type": "response.output_text.delta", "response_id": "resp_" + "0" * 32, "sequence": 12345, "delta": " so"}
DOCUMENT = json.dumps([{"id": f"msg_{number}", "role": "user", "text": "words " * 60} for number in range(250)])
LAG_S = 0.005  # from one look at the clock to the next
MOST_SLOWER, MOST_LAG_MS, MOST_UNFAIR = 1.10, 20.0, 1.10
READER = """
import selectors, socket, sys, time
sockets = [socket.create_connection(("127.0.0.1", int(sys.argv[1]))) for _ in range(int(sys.argv[2]))]
for one in sockets:
    one.setblocking(False)
while sockets:
    time.sleep(0.1)
    for one in list(sockets):
        try:
            while True:
                if not one.recv(1 << 16):
                    sockets.remove(one)
                    break
        except BlockingIOError:
            pass
"""
HOG = "while True: pass"
COUNTER = """
import sys, time
count, end = 0, time.perf_counter() + float(sys.argv[1])
while time.perf_counter() < end:
    count += 1
print(count)
"""


@dataclass
class Found:
    """Of one mode beside one batch: a value a round, or all of them."""

    step_ms: list[float] = field(default_factory=list)
    lag_ms: list[float] = field(default_factory=list)
    loop: list[float] = field(default_factory=list)  # what the loop took, in cores


class Connections:
    """The server's end of 50 connections. `mode` says what each does when it wakes, and whether it does."""

    def __init__(self) -> None:
        self.mode = "alone"
        self._awake, self._all_here = asyncio.Event(), asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def turn_to(self, mode: str) -> None:
        self.mode = mode
        if mode in ("alone", "hogs"):
            self._awake.clear()
        else:
            self._awake.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._tasks.add(asyncio.current_task())
        if len(self._tasks) == CONNECTIONS:
            self._all_here.set()
        with contextlib.closing(writer):
            while self.mode != "over":
                await self._awake.wait()
                await asyncio.sleep(EVERY_S * random.uniform(0.5, 1.5))
                if self.mode == "events":
                    writer.write(f"data: {json.dumps(EVENT)}\n\n".encode())

    async def come(self) -> None:
        await self._all_here.wait()

    async def end(self) -> None:
        self.turn_to("over")
        await asyncio.gather(*self._tasks)


async def read_and_write(connections: Connections) -> None:
    while connections.mode == "json":
        await asyncio.sleep(DOCUMENT_S)
        json.dumps(json.loads(DOCUMENT))


async def watch(lags: list[float], stop: asyncio.Event) -> None:
    while not stop.is_set():
        before = time.perf_counter()
        await asyncio.sleep(LAG_S)
        lags.append((time.perf_counter() - before - LAG_S) * 1e3)


def steps_for(driver: Driver, workload: Workload, seconds: float, mode: str) -> list[float]:
    """Milliseconds of each step, of as many repeats as begin in that time; one at least."""
    with hogs(HOGS if mode == "hogs" else 0):
        until = time.perf_counter() + seconds
        found: list[float] = []
        while not found or time.perf_counter() < until:
            found += driver.repeat(workload).steps_ms
    return found


@contextlib.contextmanager
def hogs(count: int) -> Iterator[None]:
    running = [subprocess.Popen([sys.executable, "-c", HOG]) for _ in range(count)]
    try:
        time.sleep(0.2)  # until they are at it
        yield
    finally:
        for one in running:
            one.kill()
            one.wait()


def share_of_hogs(threads: int, seconds: float) -> float:
    """By how much longer than alone it takes to count beside hogs."""
    return counted(threads, seconds, 0) / counted(threads, seconds, HOGS)


def counted(threads: int, seconds: float, others: int) -> int:
    with hogs(others):
        command = [sys.executable, "-c", COUNTER, str(seconds)]
        running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(threads)]
        return sum(int(one.communicate()[0]) for one in running)


async def measure_one(
    driver: Driver, workload: Workload, seconds: float, connections: Connections, mode: str, found: Found
) -> None:
    connections.turn_to(mode)
    stop, lags = asyncio.Event(), []
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(watch(lags, stop))
        tasks.create_task(read_and_write(connections))
        began, used = time.perf_counter(), time.thread_time()
        steps = await asyncio.to_thread(steps_for, driver, workload, seconds, mode)
        found.loop.append((time.thread_time() - used) / (time.perf_counter() - began))
        connections.turn_to("alone")
        stop.set()
    found.step_ms.append(fmean(steps))
    found.lag_ms += lags


async def measure(
    driver: Driver, work: list[Workload], rounds: int, seconds: float, door: socket.socket, threads: int
) -> tuple[dict[str, dict[str, Found]], list[float]]:
    """What was found of each workload and mode, and the hogs' share in every round."""
    connections = Connections()
    async with await asyncio.start_server(connections.serve, sock=door):
        await connections.come()
        found = {workload.name: {mode: Found() for mode in MODES} for workload in work}
        shares: list[float] = []
        for workload in work:
            await asyncio.to_thread(driver.repeat, workload)
            for number in range(rounds):
                print(f"{workload.name}, round {number + 1} of {rounds}", file=sys.stderr)
                for mode in MODES if number % 2 == 0 else MODES[::-1]:
                    await measure_one(driver, workload, seconds, connections, mode, found[workload.name][mode])
                shares.append(await asyncio.to_thread(share_of_hogs, threads, seconds))
        await connections.end()
    return found, shares


def figures(found: dict[str, Found]) -> dict[str, dict[str, float]]:
    alone = found["alone"].step_ms
    told = {}
    for mode, one in found.items():
        lags = sorted(one.lag_ms)
        told[mode] = {
            "step_ms": median(one.step_ms),
            "times": median(step / base for step, base in zip(one.step_ms, alone, strict=True)),
            "lag_p50_ms": quantile(lags, 0.5), "lag_p99_ms": quantile(lags, 0.99), "loop_cores": median(one.loop),
        }
    return told


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", default="1,16,64")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--dtype", default="int8")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    work = [Workload(kind="decode", batch=int(batch), context=128) for batch in args.batch.split(",")]
    with tempfile.TemporaryDirectory() as cache:
        model = args.model or default_model_path()
        driver, name = open_driver(model, work, dtype=args.dtype, threads=args.threads, cache=Path(cache), device="cpu")
    machine = this_machine()
    threads = args.threads or machine.cores
    door = socket.create_server(("127.0.0.1", 0))
    reader = subprocess.Popen([sys.executable, "-c", READER, str(door.getsockname()[1]), str(CONNECTIONS)])
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            found, shares = runner.run(measure(driver, work, args.rounds, args.seconds, door, threads))
    finally:
        reader.kill()
        reader.wait()
        driver.runner.close()

    fair = median(shares)
    print(f"{name}: {driver.description}; {machine.cpu}, {machine.cores} cores; {args.rounds} rounds")
    print(f"{'':16}{'':9}{'step ms':>9}{'× alone':>9}{'lag p50':>9}{'p99 ms':>9}{'loop':>9}")
    told = {workload: figures(modes) for workload, modes in found.items()}
    for workload, modes in told.items():
        for mode, own in modes.items():
            print(f"{workload if mode == 'alone' else '':16}{mode:9}{own['step_ms']:9.2f}{own['times']:9.2f}"
                  f"{own['lag_p50_ms']:9.2f}{own['lag_p99_ms']:9.2f}{own['loop_cores']:9.1%}")
    print(f"two hogs beside {threads} that wait for nobody: {fair:.2f} × ({min(shares):.2f} to {max(shares):.2f})")
    if args.json:
        args.json.write_text(json.dumps({"model": name, "description": driver.description, "fair": fair} | told) + "\n")
    fine = all(
        modes["json"]["times"] <= MOST_SLOWER and modes["hogs"]["times"] <= MOST_UNFAIR * fair
        and max(modes[mode]["lag_p99_ms"] for mode in MODES if mode != "hogs") <= MOST_LAG_MS
        for modes in told.values()
    )
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
