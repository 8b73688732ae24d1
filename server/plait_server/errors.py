"""Errors as OpenAI clients expect them: a status and ``{"error": {message, type, param, code}}``."""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from fastapi import FastAPI
from fastapi.exceptions import HTTPException, RequestValidationError
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.requests import Request
from starlette.responses import Response

from plait_engine.client import EngineDead, EngineError, QueueFull, RequestRefused
from plait_server.call import call_of

MAX_LISTED = 10
"""A wrong list of 10,000 elements must not make an answer of megabytes."""
MAX_MESSAGE_CHARS = 2_000
MAX_DETAIL_CHARS = 160
MAX_RETRY_AFTER_SECONDS = 119
"""Above this the OpenAI SDK ignores the header."""

KINDS: Mapping[int, tuple[str, str]] = {
    400: ("invalid_request_error", "invalid_value"),
    401: ("authentication_error", "invalid_api_key"),
    403: ("permission_error", "not_allowed"),
    404: ("invalid_request_error", "not_found"),
    405: ("invalid_request_error", "method_not_allowed"),
    408: ("invalid_request_error", "request_timeout"),
    413: ("invalid_request_error", "request_too_large"),
    429: ("rate_limit_error", "rate_limit_exceeded"),
    500: ("server_error", "engine_error"),
    503: ("server_error", "unavailable"),
    504: ("server_error", "time_limit"),
}
"""Status to the ``type`` and the default ``code`` of its errors."""


class ApiError(HTTPException):
    """Raised anywhere below a route; the handler turns it into the answer. The message says what to change.

    It is FastAPI's exception so that FastAPI lets it through when it is raised while the body is read.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status_code=status, detail=message, headers=headers)
        self.message = clipped(message, MAX_MESSAGE_CHARS)
        self.param = param
        self.type, default_code = KINDS.get(status, ("invalid_request_error", "error"))
        self.code = code or default_code

    def body(self) -> bytes:
        """The JSON document, as sent in an answer or in an event of a stream."""
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return orjson.dumps({"error": error})

    def response(self) -> Response:
        return Response(self.body(), self.status_code, headers=self.headers, media_type="application/json")


def clipped(text: str, limit: int) -> str:
    """At most ``limit`` characters, and nothing that UTF-8 cannot carry."""
    text = text.encode(errors="replace").decode()
    return text if len(text) <= limit else text[: limit - 3] + "..."


def bad(param: str, message: str, code: str | None = None) -> ApiError:
    return ApiError(400, f"{param}: {message}", param=param, code=code)


def unavailable(message: str, code: str, retry_after_seconds: int) -> ApiError:
    retry_after = max(1, min(retry_after_seconds, MAX_RETRY_AFTER_SECONDS))
    return ApiError(503, message, code=code, headers={"Retry-After": str(retry_after)})


def from_engine(error: EngineError) -> ApiError:
    """What a client is told when the engine would not, or could not, serve its request."""
    if isinstance(error, QueueFull):
        return unavailable(str(error) or "too many requests wait already", "queue_full", error.retry_after_seconds)
    if isinstance(error, RequestRefused):
        return ApiError(400, str(error))
    # A client library that retries at once would meet the same dead engine, or the same grammar in the same place.
    never = {"x-should-retry": "false"}
    if isinstance(error, EngineDead):
        return ApiError(500, "the engine has stopped", code="engine_dead", headers=never)
    return ApiError(500, str(error) or "the engine failed on this request", headers=never)


def from_validation(errors: Sequence[Mapping[str, Any]]) -> ApiError:
    """pydantic's findings in one message. Inputs are never echoed: they may be huge, secret or not UTF-8."""
    listed = [describe(error) for error in errors[:MAX_LISTED]]
    if len(errors) > MAX_LISTED:
        listed.append(f"and {len(errors) - MAX_LISTED} more")
    first = errors[0] if errors else {}
    codes = {"missing": "missing_required_parameter", "extra_forbidden": "unknown_parameter"}
    kind = str(first.get("type"))
    if kind == "json_invalid":
        return ApiError(400, f"the body is not valid JSON: {first['ctx']['error']}", code="invalid_json")
    return ApiError(400, "; ".join(listed), param=path_of(first) or None, code=codes.get(kind))


def describe(error: Mapping[str, Any]) -> str:
    path = path_of(error)
    if not path:  # the body as a whole: none, not an object, or not declared as JSON
        return "send a JSON object as the body, with the header content-type: application/json"
    if error["type"] == "extra_forbidden":
        return f"{path}: this server knows no such parameter; leave it out"
    message = str(error["msg"]).removeprefix("Value error, ")
    return f"{path}: {clipped(message, MAX_DETAIL_CHARS)}"


def path_of(error: Mapping[str, Any]) -> str:
    places = [str(place) for place in error.get("loc", ())]
    return clipped(".".join(places[1:] if places[:1] == ["body"] else places), MAX_DETAIL_CHARS)


async def on_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return refused(request, error)


async def on_engine_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, EngineError)
    return refused(request, from_engine(error))


async def on_validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return refused(request, from_validation(error.errors()))


def refused(request: Request, error: ApiError) -> Response:
    """The answer; counted unless the engine failed or time was up, which are counted as aborts."""
    call_of(request.scope).reason = error.code
    if error.status_code not in (500, 504):
        request.app.state.front.metrics.refused(error.code)
    return error.response()


async def on_http_error(request: Request, error: Exception) -> Response:
    """Errors that the framework itself raises: no such path, no such method, an unreadable body."""
    assert isinstance(error, StarletteHTTPException)
    if error.status_code == 404:
        path = clipped(request.url.path, MAX_DETAIL_CHARS)
        return ApiError(404, f"no such endpoint: {request.method} {path}").response()
    if error.status_code == 405:
        message = f"this endpoint does not take {clipped(request.method, 20)}"
        return ApiError(405, message, headers=error.headers).response()
    return ApiError(error.status_code, str(error.detail), headers=error.headers).response()


def install_handlers(app: FastAPI) -> None:
    app.add_exception_handler(ApiError, on_api_error)
    app.add_exception_handler(EngineError, on_engine_error)
    app.add_exception_handler(RequestValidationError, on_validation_error)
    app.add_exception_handler(StarletteHTTPException, on_http_error)
