"""The audit log: a JSON line per request, of who used what and what was refused. Never of what was said."""

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import Any

import orjson
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from plait_server.auth.guard import OPEN
from plait_server.call import Call, call_of, path_of
from plait_server.errors import KINDS

UNLOGGED = OPEN | {"/metrics"}
"""What machines ask every few seconds."""


class AuditLog:
    """Appends to a file, and to a new one when somebody has moved it away (log rotation). Lines are never mixed."""

    def __init__(self, path: Path) -> None:
        path.touch(mode=0o600)  # So that what cannot be written is known at start.
        self._handler = WatchedFileHandler(path, encoding="utf-8")

    def write(self, fields: dict[str, Any]) -> None:
        line = orjson.dumps(fields).decode()
        self._handler.handle(logging.LogRecord("audit", logging.INFO, "", 0, line, None, None))

    def close(self) -> None:
        self._handler.close()


class Audit:
    """Pure ASGI, around everything that may refuse a request."""

    def __init__(self, app: ASGIApp, write: Callable[[dict[str, Any]], None]) -> None:
        self.app = app
        self.write = write

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or path_of(scope) in UNLOGGED:
            await self.app(scope, receive, send)
            return
        started, status, complete = time.monotonic(), 0, False

        async def watched_send(message: Message) -> None:
            nonlocal status, complete
            if message["type"] == "http.response.start":
                status = message["status"]
            elif message["type"] == "http.response.body":
                complete = not message.get("more_body", False)
            await send(message)

        try:
            await self.app(scope, receive, watched_send)
        finally:
            reason = reason_of(call_of(scope), status, complete)
            self.write(line_of(scope, status, reason, time.monotonic() - started))


def reason_of(call: Call, status: int, complete: bool) -> str | None:
    """Why the client did not get what it asked for; None when it did."""
    if call.generation is not None and call.generation.failure is not None:
        return call.generation.failure
    if not complete:
        return "client_gone"
    return call.reason or (KINDS.get(status, ("", "error"))[1] if status >= 400 else None)


def line_of(scope: Scope, status: int, reason: str | None, seconds: float) -> dict[str, Any]:
    call = call_of(scope)
    usage = call.generation.usage() if call.generation else None
    return {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "request_id": call.request_id,
        "key": call.key.name if call.key else None,
        "tenant": call.tenant,
        "route": f"{scope['method']} {path_of(scope)}"[:200].encode(errors="replace").decode(),
        "model": call.model,
        "status": status or None,
        "reason": reason,
        "prompt_tokens": usage["prompt_tokens"] if usage else 0,
        "completion_tokens": usage["completion_tokens"] if usage else 0,
        "cached_tokens": usage["prompt_tokens_details"]["cached_tokens"] if usage else 0,
        "seconds": round(seconds, 4),
    }
