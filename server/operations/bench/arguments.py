"""The arguments of `hamdam bench`: their names and what is refused at once. What they start is command.py's."""
import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hamdam.engine import REPEATS

MOST = 1 << 20


def add_bench(commands: Any, place: argparse.ArgumentParser) -> None:
    """`commands` are the sub-parsers of `hamdam`, whose class also makes those below; `place` has --data."""
    bench = commands.add_parser("bench", allow_abbrev=False, help="measure speed")
    benches = bench.add_subparsers(dest="bench", required=True, metavar="WHAT")

    engine = benches.add_parser("engine", parents=[place], allow_abbrev=False, help="decode, prefill, both; no server")
    _model(engine)
    _output(engine)
    _against(engine, "a peer's URL (/v1/completions), or JSON of an earlier run, llama-bench or llama-batched-bench")
    engine.add_argument("--batch", metavar="N,N", type=_numbers, help="how many decode at once (1,4,16,32,64)")
    engine.add_argument("--context", metavar="N,N", type=_numbers, help="tokens before them (128,1024)")
    engine.add_argument("--repeats", metavar="N", type=_number(1), default=REPEATS, help="timed runs of each (5)")
    engine.add_argument("--temperature", metavar="T", type=_decimal(0, 2), default=0.0, help="0 is greedy (0)")
    engine.add_argument("--quick", action="store_true", help="a few batches, one context, fewer steps")


def _model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", metavar="NAME|PATH", help="as for `hamdam serve` (the default model)")
    parser.add_argument("--device", metavar="auto|cpu|cuda", help="what computes (auto)")
    parser.add_argument("--dtype", metavar="auto|float32|bfloat16", help="in what precision (auto)")
    parser.add_argument("--kv-memory", metavar="SIZE", help="memory for KV blocks (what is needed)")
    parser.add_argument("--threads", metavar="N", type=_number(1), help="CPU threads (all cores)")


def _output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", metavar="FILE", type=_file, help="write the figures there")
    parser.add_argument("--html", metavar="FILE", type=_file, help="write a report with plots there")


def _against(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--against", metavar="URL|FILE", help=what)
    parser.add_argument("--against-model", metavar="NAME", help="the model's name at that URL (the first it lists)")
    parser.add_argument("--against-key", metavar="KEY", help="the key for that URL")


def _number(lowest: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isdecimal() or not lowest <= int(text) <= MOST:
            raise argparse.ArgumentTypeError(f"must be a number from {lowest} to {MOST}, not {text!r}")
        return int(text)

    return parse


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(dict.fromkeys(map(_number(1), text.split(","))))


def _decimal(lowest: float, highest: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not lowest <= value <= highest:
            raise argparse.ArgumentTypeError(f"must be a number from {lowest:g} to {highest:g}, not {text!r}")
        return value

    return parse


def _file(text: str) -> Path:
    """Where something is written after minutes of measuring: what is wrong with it is said before."""
    path = Path(text)
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is no file in a folder that there is")
    return path
