"""CPU time of the front end per streamed token, against uvicorn sending constant bytes at the same pace.

Usage: ``python -m benchmarks.front_end_cpu [--streams 64] [--tokens 400] [--rounds 5]``. Both servers run in a process
of their own and are woken in the same way; a third process reads. The figure is user plus system time of the server.
"""

import argparse
import asyncio
import json
import multiprocessing
import statistics
from collections.abc import AsyncGenerator, Callable
from multiprocessing.connection import Connection
from typing import Any

import psutil
import uvicorn

from plait_engine.cache_order import CacheAnswer, CacheOrder
from plait_engine.client import EngineClient, EngineInfo, EngineStats
from plait_engine.request import Delta, FinishReason, Request
from plait_server.app import create_app
from plait_server.config import ServerConfig
from plait_server.serve import uvicorn_config
from plait_server.text.model_text import ModelText
from plait_server.text.tokenizer import TextTokenizer
from tests.server.tiny_text import TEMPLATE, byte_level_tokenizer

STEP_SECONDS = 0.02


class Clock:
    """Wakes every stream once a step, as an engine does that decodes them together."""

    def __init__(self) -> None:
        self.queues: set[asyncio.Queue[int]] = set()
        self.task: asyncio.Task[None] | None = None

    def join(self) -> "asyncio.Queue[int]":
        if self.task is None:
            self.task = asyncio.create_task(self._run())
        queue: asyncio.Queue[int] = asyncio.Queue()
        self.queues.add(queue)
        return queue

    async def _run(self) -> None:
        step = 0
        while True:
            await asyncio.sleep(STEP_SECONDS)
            step += 1
            for queue in self.queues:
                queue.put_nowait(step)


class PacedEngine(EngineClient):
    """One token a step for every request."""

    info = EngineInfo(model="m", max_model_len=100_000, vocab_size=400, eos_token_ids=(0,), max_seqs=64, max_queue=64)
    alive = True

    def __init__(self) -> None:
        self.clock = Clock()

    async def wait_ready(self) -> None:
        pass

    async def submit(self, request: Request) -> AsyncGenerator[list[Delta], None]:
        queue = self.clock.join()
        limit = request.sampling.max_tokens
        try:
            for place in range(limit):
                await queue.get()
                reason = FinishReason.LENGTH if place == limit - 1 else None
                yield [Delta(request.id, 0, (40 + place % 50,), None, reason)]
        finally:
            self.clock.queues.discard(queue)

    def abort(self, request_id: str, index: int | None = None) -> None:
        pass

    async def stats(self) -> EngineStats:
        return EngineStats()

    async def cache_order(self, order: CacheOrder) -> CacheAnswer:  # noqa: ARG002
        return CacheAnswer()

    async def shutdown(self) -> None:
        pass


def plait_app() -> Any:
    from plait_server.text.chat_template import ChatTemplate

    text = ModelText(tokenizer=TextTokenizer(byte_level_tokenizer()), template=ChatTemplate(TEMPLATE))
    return create_app(ServerConfig(), PacedEngine(), text)


def bare_app() -> Any:
    clock = Clock()
    chunk = b"data: " + b"x" * 190 + b"\n\n"

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            for kind in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{kind}.complete"})
            return
        body = b""
        while (message := await receive())["type"] == "http.request":
            body += message["body"]
            if not message.get("more_body"):
                break
        tokens = json.loads(body)["max_tokens"]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        queue = clock.join()
        for _ in range(tokens):
            await queue.get()
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        clock.queues.discard(queue)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    return app


def serve(make: Callable[[], Any], port: Connection) -> None:
    class Announced(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            port.send(self.servers[0].sockets[0].getsockname()[1])

    Announced(uvicorn_config(make(), ServerConfig(port=0, log_level="error"))).run()


async def read_streams(port: int, path: str, streams: int, tokens: int) -> None:
    body = {"stream": True, "max_tokens": tokens, "prompt": "The quick brown fox"}
    if "chat" in path:
        body["messages"] = [{"role": "user", "content": body.pop("prompt")}]
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n"

    async def one() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head.encode() + b"content-length: %d\r\n\r\n" % len(data) + data)
        while await reader.read(1 << 16):
            pass
        writer.close()

    await asyncio.gather(*(one() for _ in range(streams)))


def measure(make: Callable[[], Any], path: str, streams: int, tokens: int, rounds: int) -> list[float]:
    """Microseconds of the server's CPU per token, one figure a round; the first, cold one is left out."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(make, theirs), daemon=True)
    process.start()
    port = ours.recv()
    figures = []
    try:
        server = psutil.Process(process.pid)
        for _ in range(rounds + 1):
            before = server.cpu_times()
            asyncio.run(read_streams(port, path, streams, tokens))
            after = server.cpu_times()
            used = after.user + after.system - before.user - before.system
            figures.append(used / (streams * tokens) * 1e6)
    finally:
        process.terminate()
        process.join()
    return figures[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    cases = [
        ("constant bytes", bare_app, "/"),
        ("completions", plait_app, "/v1/completions"),
        ("chat", plait_app, "/v1/chat/completions"),
    ]
    base = 0.0
    for name, make, path in cases:
        figures = measure(make, path, given.streams, given.tokens, given.rounds)
        median = statistics.median(figures)
        base = base or median
        spread = f"{min(figures):.1f} to {max(figures):.1f}"
        print(f"{name:16} {median:6.1f} us a token ({spread}), {median / base:.2f} x constant bytes")


if __name__ == "__main__":
    main()
