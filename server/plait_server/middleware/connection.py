"""The client's side of a request: how large its body may be, how slow, and whether it is still there."""

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from plait_server.config import ServerConfig
from plait_server.errors import ApiError


class ClientConnection:
    """Bounds the body in bytes and seconds, then cancels the request's task when its client hangs up.

    Cancelling works the same way for a request that is being tokenized, waits in the queue, streams, or would be
    answered in one piece, and needs nothing of the routes but that they clean up when cancelled.
    """

    def __init__(self, app: ASGIApp, config: ServerConfig) -> None:
        self.app = app
        self.config = config

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        client = Client(self.config, receive, send)
        try:
            client.check_declared_length(scope)
            await self.app(scope, client.receive, client.send)
        except ApiError as error:
            await error.response()(scope, receive, send)
        except asyncio.CancelledError:
            if not client.gone:
                raise
            client.task.uncancel()
        finally:
            client.close()


class Client:
    """One request's ``receive`` and ``send``, watched."""

    def __init__(self, config: ServerConfig, receive: Receive, send: Send) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.task: asyncio.Task[object] = task
        self.gone = False
        self._config = config
        self._receive = receive
        self._send = send
        self._deadline = asyncio.get_running_loop().time() + config.body_timeout_seconds
        self._bytes = 0
        self._watcher: asyncio.Task[None] | None = None
        self._answered = False

    def check_declared_length(self, scope: Scope) -> None:
        for name, value in scope["headers"]:
            if name == b"content-length" and value.isdigit() and int(value[:20]) > self._config.max_body_bytes:
                raise self._too_large()

    async def receive(self) -> Message:
        if self._watcher is not None:
            # The body is complete: the next message could only be that the client is gone, and that cancels us.
            await asyncio.Event().wait()
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            limit = self._config.body_timeout_seconds
            raise ApiError(408, f"the body did not arrive within {limit:g} seconds", headers=CLOSE) from None
        if message["type"] == "http.request":
            self._bytes += len(message.get("body", b""))
            if self._bytes > self._config.max_body_bytes:
                raise self._too_large()
            if not message.get("more_body", False):
                self._watcher = asyncio.create_task(self._watch())
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self._answered = True  # from here on "disconnect" only says that the exchange is over
        await self._send(message)

    def close(self) -> None:
        if self._watcher is not None:
            self._watcher.cancel()

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if not self._answered:
            self.gone = True
            self.task.cancel()

    def _too_large(self) -> ApiError:
        limit = self._config.max_body_bytes
        return ApiError(413, f"the body is larger than {limit} bytes; send a smaller one", headers=CLOSE)


CLOSE = {"connection": "close"}
"""The rest of the body will not be read, so the connection cannot be used again."""
