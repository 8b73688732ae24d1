"""The body of POST /v1/completions."""

from typing import Annotated, Any

from pydantic import Field, model_validator

from plait_server.errors import bad
from plait_server.protocol import unsupported
from plait_server.protocol.common import GenerationBody, Logprobs
from plait_server.protocol.values import MAX_CHOICES, Prompts

DEFAULT_MAX_TOKENS = 16


class CompletionBody(GenerationBody):
    prompt: Prompts
    echo: bool | None = None
    logprobs: Logprobs | None = None
    best_of: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    add_special_tokens: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def refuse_unsupported(cls, data: Any) -> Any:
        return unsupported.without(data, unsupported.COMPLETIONS)

    @model_validator(mode="after")
    def best_of_fits(self) -> "CompletionBody":
        if self.drawn < self.choices:
            raise bad("best_of", f"must be at least n, which is {self.choices}")
        if self.stream and self.drawn > self.choices:
            raise bad("best_of", "the best answers are known at the end, so they cannot be streamed; leave out stream")
        return self

    @model_validator(mode="after")
    def something_is_asked(self) -> "CompletionBody":
        if self.max_tokens == 0 and not self.echo:
            raise bad("max_tokens", "0 needs echo: true; else give at least 1")
        return self

    @property
    def drawn(self) -> int:
        """Answers generated for each prompt, of which the best are told."""
        return self.choices if self.best_of is None else self.best_of
