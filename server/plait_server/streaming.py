"""Server-sent events: one response class and the loop that fills it."""

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from plait_engine.client import EngineError
from plait_server.drain import Running
from plait_server.errors import ApiError, from_engine
from plait_server.generation import Generation
from plait_server.sequence_text import Piece

log = logging.getLogger(__name__)


class Chunks(Protocol):
    """Turns pieces into events, for one kind of answer."""

    def pieces(self, pieces: list[Piece]) -> bytes: ...

    def closing(self) -> bytes: ...


async def events(generation: Generation, chunks: Chunks) -> AsyncGenerator[bytes, None]:
    """All events of a stream, those of one engine step together: one write to the socket."""
    async with aclosing(generation.pieces()) as batches:
        async for pieces in batches:
            if data := chunks.pieces(pieces):
                yield data
    yield chunks.closing()


class EventStream(Response):
    """Sends nothing before the first event is there: until then an error is still a plain answer with its status.

    Afterwards an error is an event, and the stream ends. starlette's StreamingResponse would run the events in
    another task, which neither the drain nor a vanished client could then cancel.
    """

    media_type = "text/event-stream"

    def __init__(self, data: AsyncGenerator[bytes, None], running: Running) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no"})
        self._data = data
        self._running = running

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        started = False
        try:
            with self._running.entry():
                async with aclosing(self._data) as data:
                    async for event in data:
                        if not started:
                            started = True
                            await self._start(send)
                        await send({"type": "http.response.body", "body": event, "more_body": True})
        except Exception as error:
            if not started:
                raise
            event = b"data: " + as_api_error(error).body() + b"\n\n"
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _start(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})


def as_api_error(error: Exception) -> ApiError:
    if isinstance(error, ApiError):
        return error
    if isinstance(error, EngineError):
        return from_engine(error)
    log.error("a stream failed", exc_info=error)
    return ApiError(500, "the server failed on this request; its log says why", code="internal_error")
