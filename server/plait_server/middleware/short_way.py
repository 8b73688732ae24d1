"""A way past the layers for the middle of a stream, which none of them looks at: eight calls less for a token."""

from starlette.types import ASGIApp, Receive, Scope, Send

from plait_server.call import call_of


class ShortWay:
    """Outside of every layer that may be passed by. The first and the last message must go through them all."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            call_of(scope).send = send
        await self.app(scope, receive, send)
