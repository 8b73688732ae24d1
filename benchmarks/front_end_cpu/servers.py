"""The servers that are compared, each in a process of its own: Plait around an engine that only keeps time, and uvicorn
with a handler that sends constant bytes.
"""

import asyncio
import json
import multiprocessing
import resource
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil
import uvicorn

from plait_engine.cache_order import CacheAnswer, CacheOrder
from plait_engine.client import EngineClient, EngineInfo, EngineStats, Follower
from plait_engine.request import Delta, FinishReason, Request
from plait_server.app import create_app
from plait_server.config import ServerConfig
from plait_server.serve import keep_what_is_there, uvicorn_config
from plait_server.text.chat_template import ChatTemplate
from plait_server.text.model_text import ModelText
from plait_server.text.tokenizer import TextTokenizer
from tests.server.tiny_text import TEMPLATE, byte_level_tokenizer

MANY = 1 << 16


def told_apart() -> list[int]:
    """Tokens whose texts are whole characters. Each step gives the next of them, so that a reader knows which it is."""
    tokenizer = byte_level_tokenizer()
    texts = {token_id: tokenizer.decode([token_id]) for token_id in range(tokenizer.get_vocab_size())}
    return [token_id for token_id, text in texts.items() if text and "\ufffd" not in text]


TOKENS = told_apart()


class Clock:
    """Wakes all streams of a server at once, as a step of an engine does.

    Step ``i`` is due at ``i * seconds`` of the machine's monotonic clock. None is left out, however late it gets.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.calls: dict[object, Callable[[int], None]] = {}
        self._task: asyncio.Task[None] | None = None

    def join(self, key: object, call: Callable[[int], None]) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        self.calls[key] = call

    def leave(self, key: object) -> None:
        self.calls.pop(key, None)

    async def _run(self) -> None:
        step = int(time.monotonic() / self.seconds) + 1
        while True:
            await asyncio.sleep(max(0.0, step * self.seconds - time.monotonic()))
            for call in list(self.calls.values()):
                call(step)
            step += 1


class PacedEngine(EngineClient):
    """One token a step for every request."""

    info = EngineInfo(
        model="m", max_model_len=100_000, vocab_size=512, eos_token_ids=(0,), max_seqs=MANY, max_queue=MANY
    )
    alive = True

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    async def wait_ready(self) -> None:
        pass

    def follow(self, request: Request, follower: Follower) -> None:
        left = request.sampling.max_tokens

        def step(number: int) -> None:
            nonlocal left
            left -= 1
            reason = None if left else FinishReason.LENGTH
            follower.take([Delta(request.id, 0, (TOKENS[number % len(TOKENS)],), None, reason)])
            if not left:
                self._clock.leave(request.id)
                follower.end(None)

        self._clock.join(request.id, step)

    def abort(self, request_id: str, index: int | None = None) -> None:  # noqa: ARG002  # there is one
        self._clock.leave(request_id)

    async def stats(self) -> EngineStats:
        return EngineStats()

    async def cache_order(self, order: CacheOrder) -> CacheAnswer:  # noqa: ARG002
        return CacheAnswer()

    async def shutdown(self) -> None:
        pass


def plait(seconds: float) -> uvicorn.Config:
    """As ``plait serve`` runs it."""
    text = ModelText(tokenizer=TextTokenizer(byte_level_tokenizer()), template=ChatTemplate(TEMPLATE))
    config = ServerConfig(port=0, log_level="error")
    return uvicorn_config(create_app(config, PacedEngine(Clock(seconds)), text), config)


def bare(seconds: float) -> uvicorn.Config:
    """A POST to ``/SIZE`` gets a write of so many bytes for every token."""
    clock = Clock(seconds)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while (message := await receive())["type"] == "http.request":
            body += message["body"]
            if not message.get("more_body"):
                break
        chunk = b"x" * int(scope["path"].removeprefix("/"))
        queue: asyncio.Queue[int] = asyncio.Queue()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        clock.join(queue, queue.put_nowait)
        for _ in range(json.loads(body)["max_tokens"]):
            await queue.get()
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        clock.leave(queue)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    return uvicorn.Config(app, port=0, loop="uvloop", http="httptools", lifespan="off", log_level="error")


class ServerProcess(AbstractContextManager["ServerProcess"]):
    """Runs from when it is entered until it is left."""

    def __init__(self, config: Callable[[float], uvicorn.Config], seconds: float) -> None:
        context = multiprocessing.get_context("spawn")
        self._port, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(config, seconds, theirs), daemon=True)

    def __enter__(self) -> "ServerProcess":
        self._process.start()
        self.port: int = self._port.recv()
        self._watched = psutil.Process(self._process.pid)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._process.terminate()
        self._process.join()

    def cpu_seconds(self) -> tuple[float, float]:
        """User and system time since the start."""
        times = self._watched.cpu_times()
        return times.user, times.system

    def waited_seconds(self) -> float:
        """Since the start, ready to run while others had the cores."""
        _, nanoseconds, _ = Path(f"/proc/{self._process.pid}/schedstat").read_text().split()
        return int(nanoseconds) / 1e9

    def memory_bytes(self) -> int:
        return int(self._watched.memory_info().rss)


def serve(config: Callable[[float], uvicorn.Config], seconds: float, port: Connection) -> None:
    class Announced(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            port.send(self.servers[0].sockets[0].getsockname()[1])

    allow_many_connections()
    announced = Announced(config(seconds))
    keep_what_is_there()
    announced.run()


def allow_many_connections() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
