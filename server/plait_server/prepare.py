"""From a validated body to a job: prompts as token ids that fit, and sampling with the model's defaults."""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import orjson

from plait_engine.request import SamplingParams
from plait_server.errors import ApiError, bad
from plait_server.front import FrontEnd
from plait_server.protocol.chat import TemplateFields
from plait_server.protocol.common import GenerationBody
from plait_server.text.chat_template import ChatTemplate, TemplateFailed

Value = TypeVar("Value")


class Params(NamedTuple):
    """What the client calls the two things that must fit together."""

    prompt: str
    max_tokens: str


def too_long(what: str, limit: int, param: str) -> ApiError:
    message = f"{what}, but this model's maximum context length is {limit} tokens; send less or ask for less"
    return ApiError(400, message, param=param, code="context_length_exceeded")


def check_chars(front: FrontEnd, chars: int, param: str) -> None:
    """Refuses what cannot fit whatever its tokens are, before any time is spent on it."""
    limit = front.engine.info.max_model_len
    if chars > limit * front.text.tokenizer.longest_token_chars:
        raise too_long(f"the prompt has {chars} characters", limit, param)


def check_ids(front: FrontEnd, ids: Sequence[int], param: str) -> None:
    vocab_size = front.engine.info.vocab_size
    if ids and not 0 <= min(ids) <= max(ids) < vocab_size:
        wrong = next(token_id for token_id in ids if not 0 <= token_id < vocab_size)
        raise bad(param, f"token id {wrong} is not in the vocabulary (0 to {vocab_size - 1})")


async def prompt_ids(
    front: FrontEnd, prompt: str | Sequence[int], *, add_special_tokens: bool, param: str = "prompt"
) -> tuple[int, ...]:
    """Token ids of one prompt, at least one and not more than the context holds."""
    if isinstance(prompt, str):
        check_chars(front, len(prompt), param)
        ids = tuple(await front.text.tokenizer.encode_soon(prompt, add_special_tokens=add_special_tokens))
    else:
        check_ids(front, prompt, param)
        ids = tuple(prompt)
    if not ids:
        raise bad(param, "must not be empty: there is nothing to continue")
    limit = front.engine.info.max_model_len
    if len(ids) > limit:
        raise too_long(f"the prompt has {len(ids)} tokens", limit, param)
    return ids


async def chat_prompt(front: FrontEnd, body: TemplateFields, **kwargs: object) -> str:
    """The conversation as the model's template writes it."""
    template = front.text.template
    if template is None:
        raise ApiError(400, "this model has no chat template; use /v1/completions instead")
    tools = len(orjson.dumps(body.tools)) if body.tools else 0
    check_chars(front, tools + sum(message.chars() for message in body.messages), "messages")
    try:
        return template.render(
            template_messages(template, body),
            add_generation_prompt=body.opens_reply,
            continue_final_message=bool(body.continue_final_message),
            kwargs=kwargs,
        )
    except TemplateFailed as error:
        raise bad("messages", f"the model's chat template does not take them: {error}") from error


def template_messages(template: ChatTemplate, body: TemplateFields) -> list[dict[str, Any]]:
    return [message.for_template(parts=template.wants_parts) for message in body.messages]


def token_limit(
    prompt_tokens: int, asked: int | None, limit: int, *, default: int | None, params: Params, most: int | None = None
) -> int:
    """How many tokens may be generated: what was asked, or the default, or (None) all the room there is.

    ``most`` is what the client's key allows: asking for more is refused, not asking gets that many.
    """
    room = limit - prompt_tokens
    if room < 1 and asked != 0:
        what = f"the prompt has {prompt_tokens} tokens and leaves no room for an answer"
        raise too_long(what, limit, params.prompt)
    if asked is None:
        return min(number for number in (room, default, most) if number is not None)
    if most is not None and asked > most:
        raise bad(params.max_tokens, f"this API key allows at most {most} tokens for an answer", "max_tokens_limit")
    if asked > room:
        what = f"the prompt has {prompt_tokens} tokens and {params.max_tokens} asks for {asked} more"
        raise too_long(what, limit, params.max_tokens)
    return asked


def sampling(
    front: FrontEnd,
    body: GenerationBody,
    *,
    max_tokens: int,
    logprobs: int | None,
    prompt_logprobs: int | None,
) -> SamplingParams:
    defaults = front.text.defaults
    check_ids(front, body.stop_token_ids, "stop_token_ids")
    check_ids(front, list(body.logit_bias), "logit_bias")
    min_tokens = body.min_tokens or 0
    if min_tokens > max_tokens:
        raise bad("min_tokens", f"{min_tokens} is more than the {max_tokens} tokens that may be generated")
    return SamplingParams(
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        temperature=given(body.temperature, defaults.temperature),
        top_k=given(body.top_k, defaults.top_k),
        top_p=given(body.top_p, defaults.top_p),
        min_p=given(body.min_p, defaults.min_p),
        presence_penalty=given(body.presence_penalty, 0.0),
        frequency_penalty=given(body.frequency_penalty, 0.0),
        repetition_penalty=given(body.repetition_penalty, defaults.repetition_penalty),
        seed=body.seed,
        logit_bias=body.logit_bias,
        stop=body.stop,
        stop_token_ids=body.stop_token_ids,
        ignore_eos=bool(body.ignore_eos),
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
    )


def given(value: Value | None, default: Value) -> Value:
    return default if value is None else value
