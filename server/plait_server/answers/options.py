"""What a client wants to see of an answer."""

from dataclasses import dataclass
from typing import TypedDict

from plait_server.protocol.common import GenerationBody


@dataclass(frozen=True, kw_only=True)
class AnswerOptions:
    logprobs: bool = False
    prompt_logprobs: bool = False
    token_ids: bool = False
    explain_cache: bool = False
    include_usage: bool = False
    continuous_usage: bool = False


class Asked(TypedDict):
    """Of these options, what all bodies say in the same way."""

    prompt_logprobs: bool
    token_ids: bool
    explain_cache: bool
    include_usage: bool
    continuous_usage: bool


def asked(body: GenerationBody) -> Asked:
    return {
        "prompt_logprobs": body.prompt_logprobs is not None,
        "token_ids": bool(body.return_token_ids),
        "explain_cache": body.explain_cache,
        "include_usage": body.include_usage,
        "continuous_usage": body.continuous_usage,
    }
