"""The arguments of `hamdam bench`: their names and what is refused at once. What they start is command.py's."""
import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hamdam.engine import PAIRS, REPEATS

from .traffic.load import Load

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
    engine.add_argument("--invariant", action="store_const", const="true", help="measure what `serve --invariant` does")
    engine.add_argument("--quick", action="store_true", help="a few batches, one context, fewer steps")


    chat = benches.add_parser("chat", parents=[place], allow_abbrev=False, help="users × turns through a server")
    _model(chat, threads=False)
    _output(chat)
    _against(chat, "a peer's URL, measured in turn with this one, or the JSON of an earlier run of ours")
    usual = Load()
    chat.add_argument("--url", metavar="URL", type=_url, help="an OpenAI-compatible server (one of our own, for now)")
    chat.add_argument("--key", metavar="KEY", default="", help="the key for it; --model is then the name there")
    for name, metavar, read, text in (
        ("users", "N", _number(1), "who hold a conversation each"),
        ("turns", "N", _number(1), "questions of each"),
        ("max_tokens", "N", _number(1), "tokens of an answer at most"),
        ("think_s", "S", _decimal(0, 3600), "seconds between an answer and the next question"),
        ("system", "TEXT", str, "the system prompt that all share"),
        ("system_repeat", "N", _number(0), "how often it stands there"),
        ("arrivals", "RATE", _decimal(1e-3, 1e3), "users a second, at random (Poisson); by default all come at once"),
    ):
        default = getattr(usual, name)
        told = text if default is None or name == "system" else f"{text} ({default:g})"
        option = f"--{name.removesuffix('_s').replace('_', '-')}"
        chat.add_argument(option, dest=name, metavar=metavar, type=read, default=default, help=told)
    chat.add_argument("--ignore-eos", action="store_true", help="every answer has max-tokens, where a server can")
    chat.add_argument("--repeats", metavar="N", type=_number(1), help=f"runs (1; with a peer's URL {PAIRS} pairs)")


    kernels = benches.add_parser("kernels", parents=[place], allow_abbrev=False, help="operations and their ceilings")
    _model(kernels, memory=False)
    _output(kernels)


def _model(parser: argparse.ArgumentParser, *, threads: bool = True, memory: bool = True) -> None:
    parser.add_argument("--model", metavar="NAME|PATH", help="as for `hamdam serve` (the default model)")
    parser.add_argument("--device", metavar="auto|cpu|cuda", help="what computes (auto)")
    parser.add_argument("--dtype", metavar="auto|int8|int16|float32|bfloat16", help="in what precision (auto)")
    if memory:
        parser.add_argument("--quantize", metavar="int8|int4|fp8", help="round weights at load, as for `hamdam serve`")
        kinds = "auto|bfloat16|float16|float32|int8|fp8"
        parser.add_argument("--kv-dtype", metavar=kinds, help="of what conversations keep computed (auto)")
        parser.add_argument("--kv-memory", metavar="SIZE", help="memory for KV blocks (engine: what is needed)")
    if threads:
        parser.add_argument("--threads", metavar="N", type=_number(1), help="CPU threads (all cores)")


def _output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", metavar="FILE", type=_file, help="write the figures there")
    parser.add_argument("--html", metavar="FILE", type=_file, help="write a report with plots there")


def _against(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--against", metavar="URL|FILE", type=_peer, help=what)
    parser.add_argument("--against-model", metavar="NAME", help="the model's name at that URL (the first it lists)")
    parser.add_argument("--against-key", metavar="KEY", default="", help="the key for that URL")


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


def _url(text: str) -> str:
    if not text.startswith(("http://", "https://")):
        raise argparse.ArgumentTypeError(f"must be an address such as http://127.0.0.1:8000, not {text!r}")
    return text


def _peer(text: str) -> str | Path:
    """A URL stays text, a file is a path."""
    if text.startswith(("http://", "https://")):
        return text
    if not Path(text).is_file():
        raise argparse.ArgumentTypeError(f"{text!r} is neither an address nor a file")
    return Path(text)


def _file(text: str) -> Path:
    """Where something is written after minutes of measuring: what is wrong with it is said before."""
    path = Path(text)
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is no file in a folder that there is")
    return path
