"""The form of errors, for the OpenAPI document."""

from typing import Any

from pydantic import BaseModel


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None
    code: str


class ErrorDocument(BaseModel):
    error: ErrorDetail


RESPONSES: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": ErrorDocument, "description": "The request must change; the message says how"},
    500: {"model": ErrorDocument, "description": "The engine failed on this request"},
    503: {"model": ErrorDocument, "description": "Queue full, loading or draining; see Retry-After"},
}
GENERATED: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The whole answer, or with `stream` its events",
        "content": {"application/json": {}, "text/event-stream": {}},
    }
}
