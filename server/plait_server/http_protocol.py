"""uvicorn's HTTP protocol with bounds on headers: in bytes, and in seconds. It has none of its own."""

import asyncio
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from plait_server.config import ServerConfig
from plait_server.errors import ApiError


class HeadersTooLarge(Exception):
    """Raised within the parser, to make it stop."""


def bounded_protocol(server: ServerConfig) -> type[HttpToolsProtocol]:
    """uvicorn makes protocols itself, from a class; so the bounds become part of the class."""

    class Bounded(BoundedProtocol):
        max_bytes = server.max_header_bytes
        max_headers = server.max_headers
        timeout_seconds = server.header_timeout_seconds

    return Bounded


class BoundedProtocol(HttpToolsProtocol):
    max_bytes: int
    max_headers: int
    timeout_seconds: float

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._in_headers = True
        self._received = 0
        """Bytes since the request began, as long as its headers are not complete."""
        self._counted = 0
        self._refusal: ApiError | None = None
        self._header_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refusal is not None or self.transport.is_closing():
            return
        super().data_received(data)
        if self._in_headers and self._refusal is None:
            # A header is reported when it is complete; one that never ends must not be collected for ever.
            self._received += len(data)
            if self._received > self.max_bytes:
                self._refuse(self._too_large())

    def on_message_begin(self) -> None:
        self._in_headers, self._received, self._counted = True, 0, 0
        self._arm()
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value))
        if len(self.headers) >= self.max_headers:
            self._refusal = ApiError(431, f"more than {self.max_headers} headers", code="headers_too_large")
            raise HeadersTooLarge
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_headers = False
        self._disarm()
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """Called when the parser gave up, also because we made it."""
        self._refuse(self._refusal or ApiError(400, msg, code="invalid_http"))

    def _count(self, size: int) -> None:
        self._counted += size
        if self._counted > self.max_bytes:
            self._refusal = self._too_large()
            raise HeadersTooLarge

    def _too_large(self) -> ApiError:
        return ApiError(431, f"the request's headers are larger than {self.max_bytes} bytes", code="headers_too_large")

    def _refuse(self, error: ApiError) -> None:
        self._refusal = error
        self._disarm()
        if self.cycle is None or self.cycle.response_complete:  # else it would land in the middle of another answer
            body = error.body()
            head = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
            self.transport.write(STATUS_LINE[error.status_code] + head + body)
        self.transport.close()

    def _arm(self) -> None:
        if self._header_timer is None:
            self._header_timer = self.loop.call_later(self.timeout_seconds, self._late)

    def _disarm(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _late(self) -> None:
        self._header_timer = None
        if not self.transport.is_closing():
            seconds = self.timeout_seconds
            self._refuse(ApiError(408, f"the request's headers did not arrive within {seconds:g} seconds"))
