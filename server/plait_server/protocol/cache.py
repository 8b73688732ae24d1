"""The body of POST /v1/cache/pins."""

from typing import Annotated, Any

from pydantic import AfterValidator, FailFast, Field, model_validator

from plait_server.errors import bad
from plait_server.protocol.body import Body
from plait_server.protocol.chat import no_reserved_names
from plait_server.protocol.messages import MAX_MESSAGES, Message
from plait_server.protocol.tools import ToolList
from plait_server.protocol.values import Prompts

MAX_TTL_SECONDS = 30 * 86_400.0
Ttl = Annotated[float, Field(gt=0, le=MAX_TTL_SECONDS, allow_inf_nan=False)]
Salt = Annotated[str, Field(min_length=1, max_length=1_024)]


class PinBody(Body):
    """A text or its token ids, or the beginning of a conversation."""

    model: str | None = None
    prompt: Prompts | None = Field(None, description="Text that prompts begin with, or its token ids.")
    messages: Annotated[list[Message], FailFast(), Field(max_length=MAX_MESSAGES)] = Field(
        default_factory=list, description="Messages that conversations begin with."
    )
    tools: ToolList = Field(default_factory=list)
    chat_template_kwargs: Annotated[dict[str, Any], AfterValidator(no_reserved_names)] | None = None
    add_special_tokens: bool | None = None
    ttl_seconds: Ttl | None = Field(None, description="An hour when not given.")
    cache_salt: Salt | None = None

    @model_validator(mode="after")
    def one_prefix(self) -> "PinBody":
        if (self.prompt is None) != bool(self.messages):
            raise bad("prompt", "give either prompt or messages")
        if self.prompt is not None and len(self.prompt) > 1:
            raise bad("prompt", "pin one prompt at a time")
        return self

    @property
    def template_kwargs(self) -> dict[str, Any]:
        return ({"tools": self.tools} if self.tools else {}) | (self.chat_template_kwargs or {})
