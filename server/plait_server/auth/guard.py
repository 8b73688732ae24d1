"""Nobody gets past here without a key, where keys are configured."""

from starlette.types import ASGIApp, Receive, Scope, Send

from plait_server.auth.keys import Key
from plait_server.call import call_of, path_of
from plait_server.errors import ApiError
from plait_server.front import FrontEnd

OPEN = frozenset({"/health", "/ready", "/version"})
"""For probes. All other paths are guarded, those that do not exist among them."""


class Guard:
    """Pure ASGI, in front of the routes: a route cannot forget it, and no body is read for a stranger."""

    def __init__(self, app: ASGIApp, front: FrontEnd) -> None:
        self.app = app
        self.front = front

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._guards(path_of(scope)):
            call = call_of(scope)
            try:
                call.key = self._key(scope)
                if scope["method"] == "POST":
                    self.front.limiter.request(call.key)
            except ApiError as error:
                call.reason = error.code
                self.front.metrics.refused(error.code)
                await error.response()(scope, receive, send)
                return
        await self.app(scope, receive, send)

    def _guards(self, path: str) -> bool:
        if not self.front.keys.required or path in OPEN:
            return False
        return path != "/metrics" or self.front.config.guard_metrics

    def _key(self, scope: Scope) -> Key:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(given) > 1:  # A proxy may have looked at another one than we would.
            raise unauthorized("send one header `Authorization`, not several", "invalid_api_key")
        scheme, _, secret = (*given, b"")[0].partition(b" ")
        if scheme.lower() != b"bearer" or not secret.strip():
            raise unauthorized("send an API key in the header `Authorization: Bearer KEY`", "missing_api_key")
        key = self.front.keys.find(secret.strip().decode(errors="surrogateescape"))
        if key is None:
            raise unauthorized("this API key is not known here; check it for typing errors", "invalid_api_key")
        if key.disabled:
            raise ApiError(403, "this API key has been disabled; ask whoever runs the server", code="api_key_disabled")
        return key


def unauthorized(message: str, code: str) -> ApiError:
    return ApiError(401, message, code=code, headers={"WWW-Authenticate": "Bearer"})
