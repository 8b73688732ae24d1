"""``x-request-id`` on every answer: the client's own when it is short and clean, else one of ours."""

import re
from secrets import token_hex

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from plait_server.call import call_of

CLEAN = re.compile(rb"[A-Za-z0-9._:/+=-]{1,128}")


class RequestId:
    """It is for logs only: what the engine calls a request is made by us and unique, whatever clients send."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
        request_id = given if CLEAN.fullmatch(given) else token_hex(16).encode()
        call_of(scope).request_id = request_id.decode()

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), (b"x-request-id", request_id)]}
            await send(message)

        await self.app(scope, receive, send_with_id)
