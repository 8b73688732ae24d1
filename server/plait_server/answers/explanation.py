"""What was reused of a prompt, and why not more: ``explain_cache``."""

from collections.abc import Mapping
from typing import Any

from plait_engine.pin import PinOutcome
from plait_server.answers.pin import report_fields
from plait_server.generation import Generation

NOTHING: Mapping[str, Any] = {}


def explanation(generation: Generation) -> dict[str, Any]:
    """The field ``plait`` of an answer to one prompt."""
    part = generation.parts[0]
    report = part.cache
    if report is None:
        return {"plait": {"cache": None}}
    cache = {
        "prompt_tokens": len(part.request.prompt),
        "matched_tokens": report.known,
        "effective_tokens": report.effective,
        "resume_point": report.effective or None,
        "reason": report.reason,
        "checkpoints": report.checkpoints,
    }
    return {"plait": {"cache": cache} | _pin(part.pin)}


def _pin(outcome: PinOutcome | None) -> dict[str, Any]:
    """What became of the pin that was asked for; nothing when none was."""
    if outcome is None:
        return {}
    return {"pin": {"refused": outcome.refusal} if outcome.pin is None else report_fields(outcome.pin)}
