"""kill -9 at random moments under load, again and again: nothing that was acknowledged may be missing afterwards.

    python tests/crash.py --rounds N [--model] [--seed S]

Each round starts the server on the same data folder (the scripted engine, or with --model the default model), lets
several clients talk over the WebSocket, kills the server at a random moment, starts it again and asks. It checks that
* every message acknowledged by `conversation.item.added` is there, with the text that was sent;
* every answer whose end event was received has that end's status, and the text that was streamed;
* no answer is left in progress; those that were running are interrupted and hold a part of what was streamed, or more;
* an interrupted answer can be continued;
* SQLite's integrity_check passes, parents exist and are in the same conversation, and every status is a known one.
"""
import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from dataclasses import dataclass, field
from pathlib import Path

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

HERE = Path(__file__).resolve().parent
STATUS_OF_END = {
    "response.completed": "completed",
    "response.incomplete": "incomplete",
    "response.cancelled": "cancelled",
    "response.failed": "failed",
    "response.interrupted": "interrupted",
}
STATUSES = {"in_progress", *STATUS_OF_END.values()}
BROKEN = {
    "a parent in another conversation, or younger than its child": """
        SELECT m.id FROM messages m JOIN messages p ON p.id = m.parent_id
        WHERE p.conversation_id != m.conversation_id OR p.created_at > m.created_at""",
    "a question without its answer's row": """
        SELECT id FROM messages q WHERE role = 'user'
        AND NOT EXISTS (SELECT 1 FROM messages a WHERE a.parent_id = q.id)""",
    "a status that nothing has after a start": """
        SELECT id FROM messages
        WHERE status NOT IN ('completed', 'incomplete', 'cancelled', 'failed', 'interrupted')""",
}


@dataclass
class Acknowledged:
    """What the server said is safe, by message id."""

    questions: dict[str, tuple[str, str]] = field(default_factory=dict)  # id -> (conversation, text)
    answers: dict[str, str] = field(default_factory=dict)  # id -> conversation
    ends: dict[str, tuple[str, str]] = field(default_factory=dict)  # id -> (status, text)
    streamed: dict[str, str] = field(default_factory=dict)  # id -> text so far


class Server:
    def __init__(self, data: Path, port: int, with_model: bool) -> None:
        self.data, self.port, self.with_model = data, port, with_model
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        scripted = [HERE / "scripted.py", "--step-seconds", "0.001"]
        server = ["-m", "hamdam.server", "serve"] if self.with_model else scripted
        command = [sys.executable, *server, "--data", self.data, "--port", str(self.port)]
        self.log = open(self.data.parent / "server.log", "ab")  # noqa: SIM115  (lives as long as the process)
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log, cwd=HERE.parent)
        deadline = time.monotonic() + 120
        while True:
            with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
                urllib.request.urlopen(self.url + "/readyz", timeout=5).close()
                return
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit("the server did not start:\n" + (self.data.parent / "server.log").read_text()[-4000:])
            time.sleep(0.05)

    def kill(self) -> None:
        assert self.process
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.log.close()


def socket_to(server: Server, key: str) -> connect:
    url = server.url.replace("http", "ws", 1) + "/ws"
    return connect(url, subprotocols=["hamdam.v1"], additional_headers={"Authorization": f"Bearer {key}"})


def message(text: str) -> dict[str, object]:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


class Talk:
    """One client: asks, reads to the end, asks again, until the server is gone; notes what was acknowledged to it."""

    def __init__(self, server: Server, key: str, seen: Acknowledged, chance: random.Random) -> None:
        self.server, self.key, self.seen, self.chance = server, key, seen, chance
        self.conversation: str | None = None
        self.question: str | None = None
        self.answer: str | None = None

    async def run(self) -> None:
        with contextlib.suppress(WebSocketException, OSError, asyncio.IncompleteReadError):
            async with socket_to(self.server, self.key) as ws:
                while True:
                    await self.turn(ws)

    async def turn(self, ws: ClientConnection) -> None:
        text, client_id = f"count {self.chance.randrange(5, 200)}", uuid.uuid4().hex
        stop_after = self.chance.randrange(1, 400) if self.chance.random() < 0.2 else None
        known = {"conversation_id": self.conversation, "parent_id": self.answer}
        where = known if self.answer else {"conversation": {}}
        await ws.send(json.dumps({
            "type": "response.create", "event_id": client_id, "client_id": client_id, "input": [message(text)],
            "sampling": {"temperature": 0, "max_tokens": 120}, **where,
        }))
        running = None
        while True:
            event = json.loads(await ws.recv())
            kind = event["type"]
            assert kind != "error", event
            if kind == "conversation.item.added":  # those of the owner's other conversations come too
                self.acknowledged(event["item"], mine=event.get("in_reply_to") == client_id, text=text)
            elif kind == "response.created" and event["client_id"] == client_id:
                running = event["response_id"]
            elif running is None or event.get("response_id") != running:
                continue
            elif kind == "response.output_text.delta":
                assert event["item_id"] == self.answer
                self.seen.streamed[self.answer] = self.seen.streamed.get(self.answer, "") + event["delta"]
                if stop_after and event["sequence_number"] >= stop_after:
                    await ws.send(json.dumps({"type": "response.cancel", "response_id": running}))
                    stop_after = None
            elif kind in STATUS_OF_END:
                self.seen.ends[self.answer] = (STATUS_OF_END[kind], self.seen.streamed.get(self.answer, ""))
                return

    def acknowledged(self, item: dict, *, mine: bool, text: str) -> None:
        if mine and item["role"] == "user":
            assert item["text"] == text
            self.question, self.conversation = item["id"], item["conversation_id"]
            self.seen.questions[item["id"]] = (item["conversation_id"], text)
        elif item["role"] == "assistant" and item["parent_id"] == self.question:
            self.answer = item["id"]
            self.seen.answers[item["id"]] = item["conversation_id"]


async def load_until_killed(server: Server, key: str, chance: random.Random, seen: Acknowledged, clients: int) -> None:
    talks = [Talk(server, key, seen, random.Random(chance.random())) for _ in range(clients)]
    tasks = [asyncio.create_task(talk.run()) for talk in talks]
    await asyncio.sleep(chance.uniform(0.0, 6.0 if server.with_model else 1.5))
    server.kill()
    await asyncio.wait_for(asyncio.gather(*tasks), 30)


def get(url: str, key: str) -> dict:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"})
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)


def check(server: Server, key: str, seen: Acknowledged) -> list[str]:
    """Interrupted answers of this round, after everything acknowledged was found."""
    items: dict[str, dict] = {}
    for conversation in {c for c, _ in seen.questions.values()}:
        page = get(f"{server.url}/api/conversations/{conversation}?limit=200", key)
        items |= {item["id"]: item for item in page["items"]}
    for message, (_, text) in seen.questions.items():
        assert items[message]["text"] == text, f"question {message} is not as it was sent"
    interrupted = []
    for message in seen.answers:
        item = items[message]
        streamed = seen.streamed.get(message, "")
        if message in seen.ends:
            status, text = seen.ends[message]
            kept = (item["status"], item["text"])
            assert kept == (status, text), f"{message}: {kept}, not {(status, text)}"
        else:
            assert item["status"] in STATUSES - {"in_progress"}, f"{message} is still {item['status']}"
            agree = item["text"].startswith(streamed) or streamed.startswith(item["text"])
            assert agree, f"{message} holds another text than was streamed"
            if item["status"] == "interrupted":
                interrupted.append(message)
    with contextlib.closing(sqlite3.connect(f"file:{server.data / 'hamdam.db'}?mode=ro", uri=True)) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert database.execute("PRAGMA foreign_key_check").fetchall() == []
        for what, query in BROKEN.items():
            assert database.execute(query).fetchall() == [], what
    return interrupted


async def carry_on(server: Server, key: str, seen: Acknowledged, answer: str) -> None:
    """Continues an interrupted answer and waits for its end."""
    async with socket_to(server, key) as ws:
        await ws.send(json.dumps({
            "type": "response.create", "client_id": uuid.uuid4().hex, "conversation_id": seen.answers[answer],
            "continue": answer, "sampling": {"temperature": 0, "max_tokens": 10},
        }))
        while True:
            event = json.loads(await asyncio.wait_for(ws.recv(), 60))
            assert event["type"] != "error", event
            if event["type"] in STATUS_OF_END:
                assert event["type"] in ("response.completed", "response.incomplete"), event
                return


def add_key(data: Path) -> str:
    """The first user and a service key, through the command."""

    def hamdam(*words: str) -> str:
        command = [sys.executable, "-m", "hamdam.server", *words, "--data", data]
        given = "a long enough passphrase\n"
        return subprocess.run(command, input=given, text=True, check=True, stdout=subprocess.PIPE).stdout

    hamdam("user", "add", "crash", "--admin", "--password-stdin")
    return hamdam("key", "add", "crash", "--service").strip()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def rounds(count: int, *, with_model: bool, seed: int, clients: int = 6) -> dict[str, int]:
    """Runs `count` rounds and returns what was seen; raises on the first thing that is missing."""
    totals = {"rounds": 0, "questions": 0, "ends": 0, "interrupted": 0, "continued": 0}
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="hamdam-crash-") as folder:
        data = Path(folder) / "data"
        data.mkdir(mode=0o700)
        key = add_key(data)
        server = Server(data, free_port(), with_model)
        server.start()
        try:
            for _ in range(count):
                seen = Acknowledged()
                asyncio.run(load_until_killed(server, key, chance, seen, clients))
                server.start()
                interrupted = check(server, key, seen)
                for answer in interrupted[:2]:
                    asyncio.run(carry_on(server, key, seen, answer))
                    totals["continued"] += 1
                totals["rounds"] += 1
                totals["questions"] += len(seen.questions)
                totals["ends"] += len(seen.ends)
                totals["interrupted"] += len(interrupted)
                print(f"round {totals['rounds']} of {count}: {totals}", file=sys.stderr, flush=True)
        finally:
            if server.process and server.process.poll() is None:
                server.kill()
    return totals


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--model", action="store_true", help="with the default model instead of the scripted engine")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    print(json.dumps(rounds(arguments.rounds, with_model=arguments.model, seed=arguments.seed)))
    print("all hold")
