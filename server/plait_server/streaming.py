"""Server-sent events: one response class and the loop that fills it."""

import asyncio
import logging
from typing import Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from plait_engine.client import EngineError
from plait_server.call import call_of
from plait_server.drain import Running
from plait_server.errors import ApiError, from_engine
from plait_server.generation import Generation
from plait_server.sequence_text import Piece

log = logging.getLogger(__name__)


class Chunks(Protocol):
    """Turns pieces into events, for one kind of answer."""

    def pieces(self, pieces: list[Piece]) -> bytes: ...

    def closing(self) -> bytes: ...


class Outgoing:
    """A generation's ``Listener``: keeps events until the client can take them."""

    __slots__ = ("_chunks", "_error", "_loop", "_over", "_ready", "_waiter")

    def __init__(self, chunks: Chunks) -> None:
        self._chunks = chunks
        self._ready: list[bytes] = []
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._over = False
        self._error: Exception | None = None

    def pieces(self, pieces: list[Piece]) -> None:
        if data := self._chunks.pieces(pieces):
            self._ready.append(data)
            self._wake()

    def ended(self, error: Exception | None) -> None:
        self._over, self._error = True, error
        self._wake()

    async def next(self) -> bytes:
        """All that is ready, as soon as there is something; nothing at the end. Raises what ended it."""
        ready = self._ready
        if not ready and not self._over:
            self._waiter = self._loop.create_future()
            await self._waiter
        if not ready and self._error is not None:
            raise self._error
        data = ready[0] if len(ready) == 1 else b"".join(ready)
        ready.clear()
        return data

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class EventStream(Response):
    """Sends nothing before the first event is there: until then an error is still a plain answer with its status.

    Afterwards an error is an event, and the stream ends. What is ready by the time the client can take it is one write.
    """

    media_type = "text/event-stream"

    def __init__(self, generation: Generation, chunks: Chunks, running: Running) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no"})
        self._generation = generation
        self._chunks = chunks
        self._running = running

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        # A task of its own has a short stack to wake for every token; the frameworks' is some twenty calls deep.
        # Cancelling us, because the client is gone, cancels it.
        await asyncio.create_task(self._run(send, call_of(scope).send or send))

    async def _run(self, send: Send, send_middle: Send) -> None:
        started = False
        try:
            async with self._running.entry():
                outgoing = Outgoing(self._chunks)
                with self._generation.working(outgoing):
                    while data := await outgoing.next():
                        if not started:
                            started = True
                            await self._start(send)
                        await send_middle({"type": "http.response.body", "body": data, "more_body": True})
            last = self._chunks.closing()
        except Exception as error:
            if not started:
                raise
            shown = as_api_error(error)
            self._generation.failure = shown.code
            last = b"data: " + shown.body() + b"\n\n"
        await send({"type": "http.response.body", "body": last, "more_body": False})

    async def _start(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})


def as_api_error(error: Exception) -> ApiError:
    if isinstance(error, ApiError):
        return error
    if isinstance(error, EngineError):
        return from_engine(error)
    log.error("a stream failed", exc_info=error)
    return ApiError(500, "the server failed on this request; its log says why", code="internal_error")
