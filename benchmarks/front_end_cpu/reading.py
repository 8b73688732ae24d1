"""Clients that read streams, all in one event loop, and remember what came when."""

import asyncio
import json
import re
import time
from collections.abc import Iterator
from typing import Any

EVENT = re.compile(rb"data: (.*)\n\n")
CONNECTIONS_AT_ONCE = 100


class Reading(asyncio.Protocol):
    """One stream: what it sent, and when how much of it was there."""

    def __init__(self, request: bytes) -> None:
        self.body = bytearray()
        self.arrivals: list[tuple[float, int]] = []
        """Seconds of the monotonic clock, and bytes by then."""
        self.over = asyncio.get_running_loop().create_future()
        self.began = time.monotonic()
        self._request = request

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # a socket's is one
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self.body += data
        self.arrivals.append((time.monotonic(), len(self.body)))

    def connection_lost(self, error: Exception | None) -> None:
        if error is None:
            self.over.set_result(None)
        else:
            self.over.set_exception(error)

    def events(self) -> Iterator[tuple[float, bytes]]:
        """When each event was complete, and what it held."""
        arrivals = iter(self.arrivals)
        at, size = next(arrivals, (0.0, 0))
        for event in EVENT.finditer(self.body):
            while size < event.end():
                at, size = next(arrivals)
            yield at, event[1]

    def tokens(self) -> Iterator[tuple[float, str]]:
        """When each event with text came, and the text."""
        for at, event in self.events():
            if event != b"[DONE]":
                for choice in json.loads(event)["choices"]:
                    text = choice["text"] if "text" in choice else choice["delta"].get("content")
                    if text:
                        yield at, text


async def read(port: int, path: str, streams: int, tokens: int) -> list[Reading]:
    """As many streams at once, until all of them are over."""
    request = request_of(path, tokens)
    loop = asyncio.get_running_loop()
    free = asyncio.Semaphore(CONNECTIONS_AT_ONCE)

    async def one() -> Reading:
        async with free:
            _, reading = await loop.create_connection(lambda: Reading(request), "127.0.0.1", port)
        await reading.over
        return reading

    return await asyncio.gather(*(one() for _ in range(streams)))


def request_of(path: str, tokens: int) -> bytes:
    body: dict[str, Any] = {"stream": True, "max_tokens": tokens}
    if "chat" in path:
        body["messages"] = [{"role": "user", "content": "The quick brown fox"}]
    else:
        body["prompt"] = "The quick brown fox"
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n"
    return head.encode() + b"content-length: %d\r\n\r\n" % len(data) + data
