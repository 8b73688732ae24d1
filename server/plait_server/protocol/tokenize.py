"""The bodies of POST /tokenize and /detokenize."""

from typing import Annotated

from pydantic import FailFast, Field

from plait_server.protocol.body import Body
from plait_server.protocol.chat import TemplateFields

MAX_TOKENS = 4_194_304


class TokenizeText(Body):
    model: str | None = None
    prompt: str
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class TokenizeMessages(TemplateFields):
    model: str | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(Body):
    model: str | None = None
    tokens: Annotated[list[Annotated[int, Field(ge=0)]], FailFast(), Field(max_length=MAX_TOKENS)]
    skip_special_tokens: bool | None = None
