"""Pins of the configuration file: prefixes that stay for as long as the server runs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plait_server.errors import ApiError
from plait_server.protocol.messages import Message


@dataclass(frozen=True)
class ConfiguredPin:
    """A prefix from the configuration, pinned for as long as the server runs. One of the two is given."""

    text: str | None
    messages: tuple[dict[str, Any], ...] = ()
    tenant: str = ""
    cache_salt: str = ""


def configured_pins(value: Any) -> tuple[ConfiguredPin, ...]:
    """Raises ``ValueError`` naming the entry. Files are read here: a wrong name shall end the start."""
    if not isinstance(value, list):
        raise ValueError("pins must be a list, an entry for each prefix")
    return tuple(_configured_pin(place, entry) for place, entry in enumerate(value, 1))


def _configured_pin(place: int, entry: Any) -> ConfiguredPin:
    where = f"pins, entry {place}"
    known = {"prompt", "prompt_file", "messages", "tenant", "cache_salt"}
    if not isinstance(entry, dict) or entry.keys() - known:
        raise ValueError(f"{where}: must hold one of prompt, prompt_file and messages, and may hold tenant, cache_salt")
    if len(entry.keys() & {"prompt", "prompt_file", "messages"}) != 1:
        raise ValueError(f"{where}: give one of prompt, prompt_file and messages")
    if not all(isinstance(value, str) for name, value in entry.items() if name != "messages"):
        raise ValueError(f"{where}: prompt, prompt_file, tenant and cache_salt are texts")
    text, messages = entry.get("prompt"), entry.get("messages", ())
    if "prompt_file" in entry:
        try:
            text = Path(entry["prompt_file"]).expanduser().read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"{where}: {entry['prompt_file']} cannot be read: {error}") from error
    if "messages" in entry:
        if not isinstance(messages, list) or not messages:
            raise ValueError(f"{where}: messages must be a list of role and content")
        try:
            for message in messages:
                Message.model_validate(message)
        except (ValueError, ApiError) as error:
            raise ValueError(f"{where}: a message is wrong: {error}") from error
    return ConfiguredPin(text, tuple(messages), entry.get("tenant", ""), entry.get("cache_salt", ""))
