"""Parameters that completions and chat share."""

from typing import Annotated, Any

from pydantic import Field, model_validator

from plait_engine.pin import PinOrder
from plait_server.errors import bad
from plait_server.protocol.body import Body
from plait_server.protocol.extensions import Extensions
from plait_server.protocol.structured import StructuredFields
from plait_server.protocol.values import (
    MAX_CHOICES,
    MAX_LOGPROBS,
    MAX_TEMPERATURE,
    SEED_LIMIT,
    LogitBias,
    StopStrings,
    TokenIds,
    TopK,
)

Penalty = Annotated[float, Field(ge=-2.0, le=2.0)]
Logprobs = Annotated[int, Field(ge=0, le=MAX_LOGPROBS)]
Count = Annotated[int, Field(ge=0)]


class StreamOptions(Body):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class GenerationBody(StructuredFields):
    """How to generate. What is not given comes from the model's generation_config.json, else from OpenAI's defaults."""

    model: str | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Count | None = None
    min_tokens: Count | None = None
    temperature: Annotated[float, Field(ge=0.0, le=MAX_TEMPERATURE, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    top_k: TopK | None = None
    min_p: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Field(gt=0.0, le=100.0)] | None = None
    seed: Annotated[int, Field(ge=-SEED_LIMIT, lt=SEED_LIMIT)] | None = None
    logit_bias: LogitBias = Field(default_factory=dict)
    stop: StopStrings = ()
    stop_token_ids: TokenIds = ()
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    ignore_eos: bool | None = None
    prompt_logprobs: Logprobs | None = None
    return_token_ids: bool | None = None
    priority: Annotated[int, Field(ge=-(2**31), lt=2**31)] | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=1_024)] | None = None
    plait: Extensions | None = None

    user: str | None = Field(None, description="Accepted, without effect; so are the fields below.")
    request_id: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_retention: str | None = None
    service_tier: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None

    @model_validator(mode="after")
    def fields_fit_together(self) -> "GenerationBody":
        if self.stream_options is not None and not self.stream:
            raise bad("stream_options", "needs stream: true")
        if self.prompt_logprobs is not None and self.stream:
            raise bad("prompt_logprobs", "cannot be streamed; leave out stream")
        return self

    @property
    def choices(self) -> int:
        return self.n or 1

    @property
    def explain_cache(self) -> bool:
        """Who pins is told what became of it, in the same place."""
        return bool(self.plait and (self.plait.explain_cache or self.plait.pin))

    @property
    def pin(self) -> PinOrder | None:
        return self.plait.pin_order() if self.plait else None

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        return bool(self.include_usage and self.stream_options and self.stream_options.continuous_usage_stats)
