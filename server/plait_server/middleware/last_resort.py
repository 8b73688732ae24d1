"""Whatever nobody foresaw becomes an answer of the usual shape, and a log line with the traceback."""

import logging

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from plait_server.errors import ApiError

log = logging.getLogger(__name__)


class LastResort:
    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def watched_send(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self.app(scope, receive, watched_send)
        except Exception as error:
            if started or scope["type"] != "http":
                raise
            log.exception("request to %s failed", scope["path"])
            if isinstance(error, RecursionError):
                answer = ApiError(400, "the body is nested too deeply", code="invalid_json")
            else:
                answer = ApiError(500, "the server failed on this request; its log says why", code="internal_error")
            await answer.response()(scope, receive, send)
