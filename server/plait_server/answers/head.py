"""What all chunks and documents of one answer begin with."""

import time
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any

import orjson


@dataclass(frozen=True, kw_only=True)
class Head:
    prefix: str
    """Of the id: ``cmpl`` or ``chatcmpl``."""
    model: str
    id: str = ""
    created: int = field(default_factory=lambda: int(time.time()))

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", self.id or f"{self.prefix}-{token_hex(16)}")

    def fields(self, kind: str) -> dict[str, Any]:
        """``kind`` is the ``object`` field."""
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def event(self, kind: str) -> bytes:
        """An event up to where its choices (or its usage) begin: the same bytes for every chunk."""
        return b"data: " + orjson.dumps(self.fields(kind))[:-1]


DONE = b"data: [DONE]\n\n"
END = b"}\n\n"
