"""Chat messages. Keys that we do not know are given to the template, which may."""

from typing import Annotated, Any, Literal

import orjson
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    PlainValidator,
    WithJsonSchema,
    model_validator,
)

from plait_server.errors import bad
from plait_server.protocol.tools import Calls

MAX_MESSAGES = 8_192
MAX_PIECES = 32_768
"""Parts and calls of all messages. Each is looked at, and everybody else waits for it."""
MAX_PARTS = 4_096


def content_of(value: Any) -> str | list[dict[str, Any]] | None:
    """A string, or a list of text parts. Other media are refused; nothing is ever fetched."""
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, list) or not all(isinstance(part, dict) for part in value):
        raise ValueError("must be a string or a list of parts")
    if len(value) > MAX_PARTS:
        raise ValueError(f"at most {MAX_PARTS} parts are allowed, not {len(value)}")
    return [text_part(part) for part in value]


def text_part(part: dict[str, Any]) -> dict[str, Any]:
    kind = part.get("type")
    if kind == "refusal":
        part = {"type": "text", "text": part.get("refusal")}
    elif kind not in ("text", "input_text"):
        shown = kind if isinstance(kind, str) and len(kind) < 40 else "unknown"
        raise ValueError(f'parts must be of type "text": this model reads no parts of type "{shown}"')
    if not isinstance(part.get("text"), str):
        raise ValueError('a part of type "text" needs its text as a string')
    return {**part, "type": "text"}


Content = Annotated[
    str | list[dict[str, Any]] | None,
    PlainValidator(content_of),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
                        "required": ["type", "text"],
                    },
                },
                {"type": "null"},
            ]
        }
    ),
]


class Message(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content = None
    tool_calls: Calls = Field(default_factory=list)
    reasoning: str | None = None
    reasoning_content: str | None = Field(None, description="The same as reasoning, which is the newer name.")

    @model_validator(mode="before")
    @classmethod
    def refuse_functions(cls, data: Any) -> Any:
        if isinstance(data, dict) and (data.get("function_call") or data.get("role") == "function"):
            raise bad("messages", "functions are not supported; use tools", "unsupported_parameter")
        return data

    @model_validator(mode="after")
    def has_content(self) -> "Message":
        if self.content is None and self.role != "assistant":
            raise ValueError(f"a message of role {self.role} needs content")
        if self.tool_calls and self.role != "assistant":
            raise ValueError("only messages of role assistant call tools")
        return self

    def chars(self) -> int:
        content = self.content or ""
        calls = len(orjson.dumps(self.tool_calls)) if self.tool_calls else 0
        return calls + (len(content) if isinstance(content, str) else sum(len(part["text"]) for part in content))

    def for_template(self, *, parts: bool) -> dict[str, Any]:
        """As templates know messages: without nulls, and with parts only where the template walks over them."""
        extra = {name: value for name, value in (self.model_extra or {}).items() if value is not None and value != []}
        if self.tool_calls:
            extra["tool_calls"] = self.tool_calls
        if (reasoning := self.reasoning or self.reasoning_content) is not None:
            extra["reasoning_content"] = reasoning
        content = self.content or ""
        if not parts and not isinstance(content, str):
            content = "".join(part["text"] for part in content)
        # Templates of open models know the older name of the role only.
        role = "system" if self.role == "developer" else self.role
        return {**extra, "role": role, "content": content}


def not_too_many(value: Any) -> Any:
    """Before any of them is looked at."""
    if not isinstance(value, list):
        return value
    if len(value) > MAX_MESSAGES:
        raise ValueError(f"at most {MAX_MESSAGES} messages are allowed, not {len(value)}")
    fields = (message.get(name) for message in value if isinstance(message, dict) for name in ("content", "tool_calls"))
    pieces = sum(len(field) for field in fields if isinstance(field, list))
    if pieces > MAX_PIECES:
        raise ValueError(f"at most {MAX_PIECES} parts and calls are allowed in all messages, not {pieces}")
    return value


Messages = Annotated[
    list[Message], FailFast(), Field(min_length=1, max_length=MAX_MESSAGES), BeforeValidator(not_too_many)
]
