"""Serving: what is wrong is found before the port opens, and a stop is an end in order."""
import asyncio
import contextlib
import io
import json
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from scripted import scripted_engine
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed
from world import World, in_world

from hamdam.engine import Engine, ModelError
from hamdam.server.__main__ import main
from hamdam.server.cutting import cut
from hamdam.server.serving import ServeError, address, serve
from hamdam.server.settings import Settings
from hamdam.server.storage.errors import FolderInUse, StorageError
from hamdam.server.storage.folder import DataFolder

ROOT = Path(__file__).resolve().parents[2]


class Running:
    """A server that is a process of its own, with the scripted engine; open when it is made."""

    def __init__(self, data: Path, *, prints: int, step_seconds: float = 0.0) -> None:
        scripted = [sys.executable, str(ROOT / "tests" / "scripted.py"), "--data", str(data), "--port", "0"]
        command = [*scripted, "--step-seconds", str(step_seconds)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        assert self.process.stdout
        self.printed = [self.process.stdout.readline() for _ in range(prints)]
        self.url = self.printed[1].split()[-1]

    def status(self, path: str) -> int:
        try:
            with urllib.request.urlopen(self.url + path, timeout=30) as said:
                return int(said.status)
        except urllib.error.HTTPError as error:
            return error.code

    def end(self, how: signal.Signals) -> int:
        self.process.send_signal(how)
        return self.process.wait(60)


@contextlib.contextmanager
def running(data: Path, *, prints: int = 2, step_seconds: float = 0.0) -> Iterator[Running]:
    server = Running(data, prints=prints, step_seconds=step_seconds)
    with server.process:
        try:
            yield server
        finally:
            server.process.kill()


@pytest.fixture
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """The first admin's, made by the command before any server ran."""
    monkeypatch.setattr("sys.stdin", io.StringIO("a good long passphrase\n"))
    assert main(["user", "add", "ana", "--admin", "--password-stdin", "--data", str(tmp_path)]) == 0
    capsys.readouterr()
    assert main(["key", "add", "ana", "--data", str(tmp_path)]) == 0
    return capsys.readouterr().out.strip()


def assert_free(data: Path) -> None:
    folder = DataFolder(data)
    folder.lock()
    folder.unlock()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_first_start_prints_where_it_is_and_a_link_that_works(tmp_path: Path) -> None:
    with running(tmp_path, prints=3) as server:
        room = "up to 8192 tokens a conversation, memory for 65536 tokens in all"
        assert server.printed[0] == f"Serving scripted (a script): {room}\n"
        assert re.fullmatch(r"Hamdam is at http://127\.0\.0\.1:\d+\n", server.printed[1])
        link = re.search(rf"{server.url}/set-up\?token=[A-Za-z0-9_-]{{43}}", server.printed[2])
        assert link
        assert server.status(link[0].removeprefix(server.url)) == 200
        assert server.status("/readyz") == 200
        with pytest.raises(FolderInUse):
            assert_free(tmp_path)
        assert server.end(signal.SIGTERM) == 0
    assert_free(tmp_path)


def test_ctrl_c_is_an_end_in_order_too(key: str, tmp_path: Path) -> None:
    with running(tmp_path) as server:
        assert server.end(signal.SIGINT) == 0
        assert server.process.stdout
        assert server.process.stdout.read() == "", "a link although there is an admin"


def test_a_stop_in_the_middle_of_an_answer_keeps_it_and_says_so(key: str, tmp_path: Path) -> None:
    async def talk(server: Running) -> tuple[str, str]:
        headers = {"Authorization": f"Bearer {key}"}
        url = server.url.replace("http", "ws", 1) + "/ws"
        async with connect(url, subprotocols=["hamdam.v1"], additional_headers=headers) as socket:
            text = {"type": "input_text", "text": "count 5000"}
            question = [{"type": "message", "role": "user", "content": [text]}]
            asked = {"type": "response.create", "client_id": "c", "conversation": {}, "input": question}
            await socket.send(json.dumps(asked))
            seen, conversation, last, stopped = "", "", "", False
            with contextlib.suppress(ConnectionClosed):
                while True:
                    event = json.loads(await asyncio.wait_for(socket.recv(), 30))
                    conversation = event.get("conversation_id", conversation)
                    seen += event.get("delta", "")
                    last = event["type"] if event["type"] != "conversation.updated" else last
                    if len(seen) > 50 and not stopped:
                        stopped = True  # once: a second signal would hurry it, and nobody would be told
                        server.process.send_signal(signal.SIGTERM)
            assert last == "response.interrupted"
        return conversation, seen

    with running(tmp_path, step_seconds=0.002) as server:
        conversation, seen = asyncio.run(talk(server))
        assert server.process.wait(60) == 0
    with running(tmp_path) as server:
        path = f"{server.url}/api/conversations/{conversation}"
        request = urllib.request.Request(path, headers={"Authorization": f"Bearer {key}"})
        with urllib.request.urlopen(request, timeout=30) as said:
            answer = json.load(said)["items"][-1]
        assert (answer["status"], answer["text"]) == ("interrupted", seen)


def engine_that_may_not_be_asked(_: Settings) -> Engine:
    raise AssertionError("the model was loaded although the start had failed already")


def test_a_second_server_on_a_folder_is_refused(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path)
    folder.lock()
    try:
        with pytest.raises(FolderInUse):
            serve(Settings(data=tmp_path, port=0), engine_that_may_not_be_asked)
    finally:
        folder.unlock()


def test_a_taken_port_is_found_before_the_model_is_loaded(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ServeError, match=f"127.0.0.1:{port} cannot be opened: Address already in use"):
            serve(Settings(data=tmp_path, port=port), engine_that_may_not_be_asked)
    assert_free(tmp_path)


@pytest.mark.parametrize("host", ["no.such.host.invalid", "999.1.1.1", "x" * 300, "..."])
def test_a_host_that_is_none_is_one_line(tmp_path: Path, host: str) -> None:
    with pytest.raises(ServeError) as refused:
        serve(Settings(data=tmp_path, host=host, port=0), engine_that_may_not_be_asked)
    assert "\n" not in str(refused.value)


def test_a_model_that_is_none_is_said_before_anybody_is_let_in(tmp_path: Path) -> None:
    port = free_port()

    def broken(settings: Settings) -> Engine:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
        raise ModelError("no tensors in it")

    with pytest.raises(ModelError, match="no tensors in it"):
        serve(Settings(data=tmp_path, port=port), broken)
    assert_free(tmp_path)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


def test_a_bad_secret_stops_the_start(tmp_path: Path, capsys) -> None:
    folder = DataFolder(tmp_path)
    folder.secrets.mkdir(mode=0o700)
    (folder.secrets / "cache_root").touch(mode=0o600)
    (folder.secrets / "cache_root").write_text("change-me")
    with pytest.raises(StorageError, match="not a key") as refused:
        serve(Settings(data=tmp_path, port=0), lambda settings: scripted_engine())
    assert "\n" not in str(refused.value)
    assert "change-me" not in str(refused.value)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "http://127.0.0.1:8000"),
        ({"host": "::1", "port": 81}, "http://[::1]:81"),
        ({"host": "0.0.0.0"}, f"http://{socket.gethostname()}:8000"),
        ({"public_url": "https://chat.example.org"}, "https://chat.example.org"),
    ],
)
def test_the_address_is_what_people_type(tmp_path: Path, settings: dict, said: str) -> None:
    assert address(Settings(data=tmp_path, **settings)) == said


@in_world()
async def test_frames_are_bounded_and_never_compressed(world: World) -> None:
    async with world.client(await world.key("ana")) as ana:
        assert ana.connection.protocol.extensions == []
        await ana.connection.send("x" * ((1 << 20) + 1))
        assert await ana.closed() == 1009


@in_world()
async def test_a_handshake_hands_the_way_to_cut_the_connection(world: World) -> None:
    async with world.client(await world.key("ana")) as ana:
        protocol = next(c for c in world.connections if getattr(c, "scope", {}).get("type") == "websocket")
        assert cut(protocol.scope)
        assert await ana.closed() == 1006


@in_world()
async def test_answers_do_not_say_what_they_are_made_of(world: World) -> None:
    async with world.http() as http:
        said = await http.get("/healthz", headers={"x-forwarded-for": "1.2.3.4", "x-forwarded-proto": "https"})
    assert "server" not in said.headers
