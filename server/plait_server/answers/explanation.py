"""What was reused of a prompt, and why not more: ``explain_cache``."""

from collections.abc import Mapping
from typing import Any

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
    return {"plait": {"cache": cache}}
