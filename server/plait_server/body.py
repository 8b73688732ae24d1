"""Request bodies, decoded strictly: no NaN, no infinity, no lone surrogates, no bottomless nesting."""

from collections.abc import Callable, Coroutine
from typing import Any

import orjson
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response


class StrictRequest(Request):
    """The standard library's decoder, used otherwise, accepts values that no JSON encoder can then echo."""

    async def json(self) -> Any:
        """Raises ``orjson.JSONDecodeError``, which is the standard library's too: the framework makes it a finding."""
        return orjson.loads(await self.body())


class StrictRoute(APIRoute):
    """FastAPI's own way in for another request class; bodies stay declared in the OpenAPI document."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            return await handler(StrictRequest(request.scope, request.receive))

        return handle
