"""A peer that does not read, or is gone: bounded memory, then its socket; never the answer, nor anybody's pace."""
import asyncio
import base64
import contextlib
import json
import os
import socket

from world import Run, World, in_world, small_engine

from hamdam.server import serving
from hamdam.server.chat.audience import Viewer


def dumb_socket(world: World, key: str) -> socket.socket:
    """An upgraded connection with a tiny window, that reads only what it is told to."""
    peer = socket.socket()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    peer.connect(("127.0.0.1", world.port))
    nonce = base64.b64encode(os.urandom(16)).decode()
    peer.sendall(
        (
            f"GET /ws HTTP/1.1\r\nHost: 127.0.0.1:{world.port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {nonce}\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: hamdam.v1\r\n"
            f"Authorization: Bearer {key}\r\n\r\n"
        ).encode()
    )
    peer.recv(64)  # the beginning of the answer: it is open
    return peer


def frame(event: dict) -> bytes:
    """A masked text frame, with a mask of zeros."""
    data = json.dumps(event).encode()
    return b"\x81\xff" + len(data).to_bytes(8, "big") + b"\0\0\0\0" + data


async def joined(world: World, name: str) -> Viewer:
    await world.until(lambda: world.turns.audience.count(world.users[name]))
    return next(iter(world.turns.audience._of_user[world.users[name]]))


def test_g01_a_line_that_is_dead_is_noticed_by_pings_and_ends_no_answer(tmp_path, monkeypatch) -> None:
    """Nothing comes from the peer any more, not even a close: within a ping and its timeout its socket is gone."""
    assert serving.PING_S == 20
    monkeypatch.setattr(serving, "PING_S", 0.2)

    @in_world(gate=True)
    async def scene(world: World) -> None:
        peer = await asyncio.to_thread(dumb_socket, world, await world.key("ana"))
        try:
            await joined(world, "ana")
            content = [{"type": "input_text", "text": "say on"}]
            asked = {"type": "response.create", "client_id": "c", "conversation": {}}
            asked["input"] = [{"type": "message", "role": "user", "content": content}]
            await asyncio.to_thread(peer.sendall, frame(asked))
            await world.until(lambda: world.turns.find(world.users["ana"], client_id="c"))
            turn = world.turns.find(world.users["ana"], client_id="c")
            await world.until(lambda: not world.turns.audience.count(world.users["ana"]) and not world.connections)
            assert not turn.followers
            assert turn.end is None
            world.open_gate()
            await turn.ended.wait()
            assert turn.text == "on"
        finally:
            peer.close()

    scene(tmp_path)


LONG = "long " * 30_000
ONE_STEP = {"config": small_engine(max_batch_tokens=1 << 18), "max_context": 1 << 18, "num_blocks": 1 << 15}


@in_world(lambda question: "the answer", narrow=True, limits={"slow_consumer_s": 0.3}, **ONE_STEP)
async def test_g02_a_reader_that_stops_loses_its_socket_and_not_the_answer(world: World) -> None:
    key = await world.key("ana")
    peer = await asyncio.to_thread(dumb_socket, world, key)
    try:
        viewer = await joined(world, "ana")
        content = [{"type": "input_text", "text": LONG}]
        asked = {"type": "response.create", "client_id": "c", "conversation": {}}
        asked["input"] = [{"type": "message", "role": "user", "content": content}]
        await asyncio.to_thread(peer.sendall, frame(asked))
        async with world.client(await world.key("bob")) as bob:
            assert (await bob.ask("say hello")).text == "the answer", "others are served meanwhile"
        await world.until(lambda: world.turns.audience.count(world.users["ana"]) == 0)
        assert viewer._closing.done() or viewer._line_size <= world.house.settings.limits.outgoing_bytes
        await world.until(lambda: not world.connections)  # cut off: a close would wait for its answer for ever
        turn = world.turns.find(world.users["ana"], client_id="c")
        await turn.ended.wait()
        assert not turn.followers
        async with world.client(key) as back:
            after = {"response_id": turn.names.response_id, "sequence_number": 1}
            await back.send(type="conversation.subscribe", conversation_id=turn.names.conversation_id, after=after)
            await back.until("conversation.subscribed")
            run = Run(back, seen=1)
            assert (await run.follow(turn.names.response_id)).text == "the answer", "all of it is there on return"
    finally:
        peer.close()


@in_world(narrow=True, limits={"slow_consumer_s": 0.3}, **ONE_STEP)
async def test_g02_a_reader_of_a_byte_now_and_then_loses_its_socket_too(world: World) -> None:
    peer = await asyncio.to_thread(dumb_socket, world, await world.key("ana"))
    try:
        await joined(world, "ana")
        content = [{"type": "input_text", "text": LONG}]
        asked = {"type": "response.create", "client_id": "c", "conversation": {}}
        asked["input"] = [{"type": "message", "role": "user", "content": content}]
        await asyncio.to_thread(peer.sendall, frame(asked))
        await world.until(lambda: world.turns.find(world.users["ana"], client_id="c"))
        peer.setblocking(False)
        while world.turns.audience.count(world.users["ana"]):
            with contextlib.suppress(BlockingIOError):
                peer.recv(1)
            await asyncio.sleep(0.05)
        await world.until(lambda: not world.connections)
        await world.turns.find(world.users["ana"], client_id="c").ended.wait()
    finally:
        peer.close()


@in_world(narrow=True, limits={"slow_consumer_s": 0.3})
async def test_g02_a_stream_that_nobody_reads_ends_with_its_work(world: World) -> None:
    key = await world.key("ana")
    body = {"messages": [{"role": "user", "content": "x"}], "stream": True, "ignore_eos": True}
    data = json.dumps(body).encode()
    with socket.socket() as peer:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await asyncio.to_thread(peer.connect, ("127.0.0.1", world.port))
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n"
        peer.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        await world.until(lambda: world.engine._open)
        (generation,) = world.engine._open.values()
        async with world.client(await world.key("bob")) as bob:
            assert (await bob.ask("say hello")).text == "hello", "others are served meanwhile"
            await world.until(lambda: generation.finished)
        await world.until(lambda: not world.connections)  # cut off: what it has not read would keep it open for ever
        assert not world.engine._open
        await world.until(lambda: not world.house.authenticator.watcher._watched)


FLOOD = {"outgoing_frames": 20, "slow_consumer_s": 60.0, "events_per_second": 100_000, "event_burst": 100_000}


@in_world(limits=FLOOD, narrow=True)
async def test_g02_replies_that_nobody_reads_are_bounded_in_number(world: World) -> None:
    key = await world.key("ana")
    peer = await asyncio.to_thread(dumb_socket, world, key)
    try:
        await joined(world, "ana")
        peer.setblocking(False)
        ping = frame({"type": "ping", "t": "x" * 64, "event_id": "e" * 64}) * 50
        while world.turns.audience.count(world.users["ana"]):
            try:
                peer.send(ping)
            except (BlockingIOError, ConnectionError):
                pass
            await asyncio.sleep(0.001)
        await world.until(lambda: not world.app.state.house.authenticator.watcher._watched)
    finally:
        peer.close()


@in_world(gate=True)
async def test_a_slow_socket_gets_bigger_pieces_and_the_first_one_at_once(world: World) -> None:
    async with world.client(await world.key("ana")) as ana:
        await ana.send(type="session.update", coalesce_ms=250)
        run = await ana.start("say " + "x" * 60)
        world.open_gate()
        await run.finish()
        deltas = [e for e in run.events if e["type"] == "response.output_text.delta"]
        assert len(deltas[0]["delta"]) < 60 or len(deltas) == 1
        assert len(deltas) < 60
        assert "".join(d["delta"] for d in deltas) == "x" * 60
