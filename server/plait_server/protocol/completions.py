"""The body of POST /v1/completions."""

from typing import Annotated, Any

from pydantic import Field, model_validator

from plait_server.errors import bad
from plait_server.protocol import unsupported
from plait_server.protocol.common import GenerationBody, Logprobs
from plait_server.protocol.values import Prompts

DEFAULT_MAX_TOKENS = 16


class CompletionBody(GenerationBody):
    prompt: Prompts
    echo: bool | None = None
    logprobs: Logprobs | None = None
    best_of: Annotated[int, Field(ge=1)] | None = None
    add_special_tokens: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def refuse_unsupported(cls, data: Any) -> Any:
        return unsupported.without(data, unsupported.COMPLETIONS)

    @model_validator(mode="after")
    def best_of_is_n(self) -> "CompletionBody":
        if self.best_of is not None and self.best_of != self.choices:
            raise bad("best_of", f"values other than n ({self.choices}) are not supported yet; leave it out")
        return self

    @model_validator(mode="after")
    def something_is_asked(self) -> "CompletionBody":
        if self.max_tokens == 0 and not self.echo:
            raise bad("max_tokens", "0 needs echo: true; else give at least 1")
        return self
