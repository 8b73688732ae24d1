"""The bodies of POST /tokenize and /detokenize."""

from typing import Annotated, Any

from pydantic import FailFast, Field, model_validator

from plait_server.errors import bad
from plait_server.protocol.body import Body
from plait_server.protocol.chat import TemplateFields

MAX_TOKENS = 1_048_576


class TokenizeText(Body):
    model: str | None = None
    prompt: str
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def say_something(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.keys().isdisjoint(("prompt", "messages")):
            raise bad("prompt", "give prompt or messages", "missing_required_parameter")
        return data


class TokenizeMessages(TemplateFields):
    model: str | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(Body):
    model: str | None = None
    tokens: Annotated[list[Annotated[int, Field(ge=0)]], FailFast(), Field(max_length=MAX_TOKENS)]
    skip_special_tokens: bool | None = None
