"""How a stream gets to its client: what is ready is one write, layers see its ends, and slow clients lose nothing."""

import asyncio
import json
import socket
from typing import Any

import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from plait_server.app import create_app
from plait_server.config import ServerConfig
from plait_server.sequence_text import Piece
from plait_server.streaming import Outgoing
from plait_server.text.model_text import ModelText
from tests.server import sse
from tests.server.fake_engine import FakeEngine
from tests.server.live_server import LiveServer


class Spelled:
    """Chunks that are the pieces' texts."""

    def pieces(self, pieces: list[Piece]) -> bytes:
        return "".join(piece.text for piece in pieces).encode()

    def closing(self) -> bytes:
        return b"."


def step(text: str) -> list[Piece]:
    return [Piece(0, text, (1,))]


async def test_what_came_while_the_client_took_nothing_is_one_write() -> None:
    outgoing = Outgoing(Spelled())
    for text in "abc":
        outgoing.pieces(step(text))
    assert await outgoing.next() == b"abc"
    later = asyncio.create_task(outgoing.next())
    await asyncio.sleep(0)
    for text in ("", "d", "e"):
        outgoing.pieces(step(text))
    assert await later == b"de"
    outgoing.ended(None)
    assert await outgoing.next() == b""


async def test_an_error_comes_behind_what_was_ready() -> None:
    outgoing = Outgoing(Spelled())
    outgoing.pieces(step("a"))
    outgoing.ended(ValueError("broken"))
    assert await outgoing.next() == b"a"
    with pytest.raises(ValueError, match="broken"):
        await outgoing.next()


async def test_steps_after_a_reader_was_cancelled_are_no_error() -> None:
    outgoing = Outgoing(Spelled())
    reader = asyncio.create_task(outgoing.next())
    await asyncio.sleep(0)
    reader.cancel()
    await asyncio.gather(reader, return_exceptions=True)
    outgoing.pieces(step("a"))
    outgoing.ended(None)
    assert await outgoing.next() == b"a"


class Seen:
    """A layer that writes down what passes."""

    def __init__(self, app: ASGIApp, messages: list[Message]) -> None:
        self.app = app
        self.messages = messages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def watched_send(message: Message) -> None:
            self.messages.append(message)
            await send(message)

        await self.app(scope, receive, watched_send)


async def test_layers_within_see_the_ends_of_a_stream_and_layers_around_see_all_of_it(
    engine: FakeEngine, text: ModelText
) -> None:
    app = create_app(ServerConfig(), engine, text)
    within: list[Message] = []
    around: list[Message] = []
    app.user_middleware.append(type(app.user_middleware[0])(Seen, messages=within))
    app.add_middleware(Seen, messages=around)
    await ask(app, {"prompt": "x", "max_tokens": 6, "stream": True})
    ends = [message for message in within if message["type"].startswith("http")]
    assert [message["type"] for message in ends] == ["http.response.start", "http.response.body"]
    assert not ends[-1]["more_body"]
    assert around[0]["type"] == "http.response.start"
    assert (b"x-request-id", b"mine") in around[0]["headers"]
    assert ends[-1] is around[-1]
    stream = sse.parse(b"".join(message.get("body", b"") for message in around).decode())
    assert stream.done
    assert len(stream.events) == 6


async def ask(app: ASGIApp, body: dict[str, Any]) -> None:
    """One POST, as an ASGI server would make it."""
    headers = [(b"content-type", b"application/json"), (b"x-request-id", b"mine")]
    path = "/v1/completions"
    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": headers}
    messages = [{"type": "http.request", "body": json.dumps(body).encode()}]

    async def receive() -> Message:
        if not messages:
            await asyncio.Event().wait()
        return messages.pop()

    async def send(_: Message) -> None:
        pass

    async with app.router.lifespan_context(app):  # type: ignore[attr-defined]
        await app.state.front.health.settled.wait()  # type: ignore[attr-defined]
        await app(scope, receive, send)


def test_a_client_that_does_not_read_for_a_while_gets_everything_and_holds_up_nobody(text: ModelText) -> None:
    """What it is sent, some four megabytes, is more than sockets take."""
    tokens = 20_000
    with LiveServer(FakeEngine(max_model_len=100_000), text) as live:
        live.engine.tokens = lambda request, _: [40 + place % 50 for place in range(request.sampling.max_tokens)]
        body = json.dumps({"prompt": "x", "max_tokens": tokens, "stream": True}).encode()
        head = b"POST /v1/completions HTTP/1.0\r\nhost: x\r\ncontent-type: application/json\r\n"
        with socket.create_connection(("127.0.0.1", live.server.port), timeout=60) as client:
            client.sendall(head + b"content-length: %d\r\n\r\n" % len(body) + body)
            live.wait(lambda: bool(live.engine.requests) and live.engine.sequences_running == 0, 60)
            assert len(live.front.running) == 1
            with live.client() as other:
                assert other.post("/v1/completions", json={"prompt": "y", "stream": True}).status_code == 200
            received = bytearray()
            while part := client.recv(1 << 20):
                received += part
        ids = [40 + place % 50 for place in range(tokens)]
        assert text_of(received) == text.tokenizer.decode(ids)
        assert received.count(b"[DONE]") == 1


def text_of(answer: bytearray) -> str:
    events = [line.removeprefix(b"data: ") for line in answer.split(b"\n") if line.startswith(b"data: {")]
    return "".join(choice["text"] for event in events for choice in json.loads(event)["choices"])


def test_a_client_that_leaves_without_having_read_ends_its_work(text: ModelText) -> None:
    with LiveServer(FakeEngine(max_model_len=1_000_000), text) as live:
        live.engine.tokens = lambda request, _: [40] * request.sampling.max_tokens
        body = json.dumps({"prompt": "x", "max_tokens": 900_000, "stream": True}).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        client = socket.create_connection(("127.0.0.1", live.server.port), timeout=60)
        client.sendall(head + b"content-length: %d\r\n\r\n" % len(body) + body)
        live.wait(lambda: live.engine.steps > 20_000, 60)
        client.close()
        live.wait(lambda: live.engine.sequences_running == 0)
        live.wait(lambda: len(live.front.running) == 0)
