"""Computing a prefix so that it stays: for the endpoint, and for the pins of the configuration."""

import logging
from collections.abc import Sequence
from typing import Any

from plait_engine.client import EngineError, RequestRefused
from plait_engine.pin import PinOrder, PinReport
from plait_engine.request import SamplingParams
from plait_server.answers.collected import collect
from plait_server.auth.keys import Key
from plait_server.call import Call
from plait_server.configured_pins import ConfiguredPin
from plait_server.errors import ApiError, bad
from plait_server.front import FrontEnd
from plait_server.generation import Job
from plait_server.prepare import check_chars, prompt_ids
from plait_server.protocol.messages import Message
from plait_server.text.chat_template import TemplateFailed

log = logging.getLogger(__name__)

PROBE = "\ue000next\ue000"
"""Stands for what other conversations go on with."""


async def pin(front: FrontEnd, call: Call, ids: tuple[int, ...], cache_salt: str, order: PinOrder) -> PinReport:
    """Raises ``ApiError`` with the reason when it cannot be."""
    sampling = SamplingParams(max_tokens=0, temperature=0.0)
    generation = front.generate(Job(prompts=(ids,), sampling=sampling, cache_salt=cache_salt, pin=order), call)
    try:
        await collect(generation)
    except RequestRefused as refusal:
        raise ApiError(400, str(refusal), code="pin_refused") from refusal
    outcome = generation.parts[0].pin
    if outcome is None or outcome.pin is None:
        reason = outcome.refusal if outcome else "the engine did not say what became of it"
        raise ApiError(400, f"it cannot be pinned: {reason}", code="pin_refused")
    return outcome.pin


async def messages_prefix(
    front: FrontEnd, messages: Sequence[Message], kwargs: dict[str, Any], *, special: bool
) -> tuple[int, ...]:
    """What conversations that begin with these messages have in common, up to where the next message's text begins."""
    template = front.text.template
    if template is None:
        raise ApiError(400, "this model has no chat template; pin a prompt instead")
    check_chars(front, sum(message.chars() for message in messages), "messages")
    asks = messages[-1].role in ("user", "tool")
    follows = {"role": "assistant" if asks else "user", "content": PROBE}
    given = [*(message.for_template(parts=template.wants_parts) for message in messages), follows]
    try:
        rendered = template.render(given, add_generation_prompt=False, kwargs=kwargs)
    except TemplateFailed as error:
        raise bad("messages", f"the model's chat template does not take them: {error}") from error
    prefix, probe, _ = rendered.partition(PROBE)
    if not probe:
        raise bad("messages", "the model's chat template does not keep them for what follows")
    return await prompt_ids(front, prefix, add_special_tokens=special, param="messages")


# From the configuration -----------------------------------------------------------------------------------------------


async def pin_configured(front: FrontEnd) -> None:
    """Once the engine is ready. What cannot be pinned is logged; the server serves without it."""
    await front.health.settled.wait()
    for place, wanted in enumerate(front.config.pins, 1):
        try:
            report = await _pin_one(front, wanted)
        except (ApiError, EngineError) as error:
            log.error("pins, entry %d: %s", place, getattr(error, "message", error))
        else:
            log.info("pins, entry %d: %d tokens, %d bytes", place, report.tokens, report.n_bytes)


async def _pin_one(front: FrontEnd, wanted: ConfiguredPin) -> PinReport:
    front.health.admit()
    # No key of a file has this name: it begins with a bracket.
    call = Call(key=Key(name="(configuration)", tenant=wanted.tenant, digest=b""))
    if wanted.text is not None:
        ids = await prompt_ids(front, wanted.text, add_special_tokens=True)
    else:
        messages = [Message.model_validate(message) for message in wanted.messages]
        ids = await messages_prefix(front, messages, {}, special=False)
    return await pin(front, call, ids, wanted.cache_salt, PinOrder(ttl_seconds=None, configured=True))
