"""A client that costs little: so many requests at a time, each a stream whose chunks are only counted and timed."""

import asyncio
import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

CHUNK = b"data: {"
END = b"data: [DONE]"
TAIL = 4096


@dataclass
class Reply:
    """Times in seconds; ``chunks`` are when each came, ``tokens`` and ``cached`` are what the server counted."""

    begun: float
    chunks: list[float] = field(default_factory=list)
    tokens: int = 0
    cached: int = 0

    @property
    def first(self) -> float:
        return self.chunks[0] - self.begun

    @property
    def per_token(self) -> float:
        """Between the first token and the last."""
        return (self.chunks[-1] - self.chunks[0]) / max(1, self.tokens - 1)

    @property
    def gaps(self) -> list[float]:
        return [b - a for a, b in zip(self.chunks, self.chunks[1:], strict=False)]


class _Stream(asyncio.Protocol):
    def __init__(self, request: bytes, done: "asyncio.Future[Reply]") -> None:
        self._request = request
        self._done = done
        self._tail = b""
        self.reply = Reply(time.perf_counter())

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        seen = self._tail[-len(CHUNK) + 1 :] + data
        self.reply.chunks.extend([now] * seen.count(CHUNK))
        self._tail = (self._tail + data)[-TAIL:]
        if END in self._tail:
            self._finish()

    def _finish(self) -> None:
        counted = re.search(rb'"completion_tokens":(\d+)', self._tail)
        cached = re.search(rb'"cached_tokens":(\d+)', self._tail)
        self.reply.chunks.pop()  # the one with the usage
        if counted is None:
            self._fail("a stream without usage")
            return
        self.reply.tokens, self.reply.cached = int(counted[1]), int(cached[1]) if cached else 0
        if not self._done.done():
            self._done.set_result(self.reply)
        self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._done.done():
            self._fail(f"the connection ended: {exc or self._tail[-600:]!r}")

    def _fail(self, why: str) -> None:
        if not self._done.done():
            self._done.set_exception(RuntimeError(why))


async def ask(port: int, body: dict[str, Any]) -> Reply:
    """One streamed completion."""
    payload = json.dumps({**body, "stream": True, "stream_options": {"include_usage": True}}).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(payload)}\r\nConnection: close\r\n\r\n"
    )
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Reply] = loop.create_future()
    await loop.create_connection(lambda: _Stream(head.encode() + payload, done), "127.0.0.1", port)
    return await done


async def closed_loop(
    port: int, bodies: Sequence[dict[str, Any]], concurrency: int, tell: Callable[[int, int], None] = lambda *_: None
) -> tuple[list[Reply], float]:
    """All requests, ``concurrency`` at a time; the replies and the seconds from the first request to the last byte."""
    waiting = iter(bodies)
    replies: list[Reply] = []

    async def worker() -> None:
        for body in waiting:
            replies.append(await ask(port, body))
            tell(len(replies), len(bodies))

    started = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(min(concurrency, len(bodies)))))
    return replies, time.perf_counter() - started
