"""ChildServer: a Hamdam of our own to measure, in a process of its own, with a data folder that is gone afterwards."""
import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from hamdam.engine import BenchError, EngineConfig, compile_native

from ....people.accounts import add_user
from ....people.keys import create_key
from ....settings import OPTIONS, Settings
from ....storage.database import Database
from ....storage.folder import DataFolder
from .door import Door, open_door

OURS = frozenset({"host", "port", "public_url", "model"})  # options that this file sets or has no use for
GRACE_S = 20.0


@contextlib.contextmanager
def child_server(model: Path, settings: Settings) -> Iterator[tuple[Door, str]]:
    """The server, and what it says it serves. In our own process the load would take its time.

    Its cache is the real one, with native code in it, if it is to be had: a first minute in PyTorch is no measure of a
    server. Raises BenchError or ModelError.
    """
    cache = DataFolder(settings.data).cache
    compile_native(EngineConfig(
        model=model, device=settings.device, dtype=settings.dtype, quantize=settings.quantize,
        kv_dtype=settings.kv_dtype, cache=cache,
    ))
    with tempfile.TemporaryDirectory(prefix="hamdam-bench-") as folder:
        data = Path(folder) / "data"
        key = asyncio.run(_service_key(data))
        cache.mkdir(exist_ok=True)
        DataFolder(data).cache.symlink_to(cache)
        said = {name: getattr(settings, name) for name in OPTIONS if name not in OURS}
        options = {f"HAMDAM_{name.upper()}": str(value) for name, value in said.items() if value is not None}
        place = ["--data", str(data), "--host", "127.0.0.1", "--port", "0", "--model", str(model)]
        command = [sys.executable, "-m", "hamdam.server", "serve", *place]
        with running(command, options, Path(folder)) as (serving, url):
            yield open_door(url, key=key), serving


@contextlib.contextmanager
def running(command: list[str], options: Mapping[str, str], folder: Path) -> Iterator[tuple[str, str]]:
    """What a server prints that it serves, and its address; the process ends with the block. `options` stand in its
    environment, in place of those of ours. Raises BenchError."""
    errors = folder / "errors"
    with (
        errors.open("wb") as log,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True,
            env={name: value for name, value in os.environ.items() if not name.startswith("HAMDAM_")} | dict(options),
            start_new_session=True,  # an interrupt is for us, and we end it
        ) as process,
    ):
        try:
            yield _opened(process, errors)
        finally:
            process.terminate()
            try:
                process.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _opened(process: "subprocess.Popen[str]", errors: Path) -> tuple[str, str]:
    assert process.stdout
    serving = ""
    for line in process.stdout:
        if line.startswith("Serving "):
            serving = line.removeprefix("Serving ").strip()
        if line.startswith("Hamdam is at "):
            return serving, line.split()[-1]
    said = errors.read_text(errors="replace").strip().splitlines() or ["it said nothing"]
    raise BenchError(f"the server did not start: {said[-1]}")


async def _service_key(data: Path) -> str:
    """Speaks for many people, so that no bound of one person's holds up the load."""
    database = await Database.open(DataFolder(data).database)
    try:
        async with database.write() as sql:
            user = await add_user(sql, "bench", "no password", role="member")
            return (await create_key(sql, user.id, label="bench", service=True))[1]
    finally:
        await database.close()
