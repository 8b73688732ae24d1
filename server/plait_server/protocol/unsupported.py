"""Parameters that clients know and this server does not honour yet: refused, never ignored in silence."""

from collections.abc import Callable
from typing import Any

from plait_server.errors import bad

Harmless = Callable[[Any], bool]


def absent(value: Any) -> bool:
    return value is None


def nothing(value: Any) -> bool:
    return value is None or value in ([], {}, "")


def no_function(value: Any) -> bool:
    return value in (None, "none", "auto")


COMPLETIONS: dict[str, Harmless] = {"suffix": nothing, "prompt_embeds": absent}
CHAT: dict[str, Harmless] = {
    "functions": nothing,
    "function_call": no_function,
    "audio": absent,
    "moderation": absent,
    "web_search_options": absent,
    "modalities": lambda value: value in (None, ["text"]),
    "chat_template": absent,
}
"""Each with the values under which leaving the parameter out changes nothing."""


def without(body: Any, table: dict[str, Harmless]) -> Any:
    """The body less parameters of the table; raises when one of them asks for something."""
    if not isinstance(body, dict) or table.keys().isdisjoint(body):
        return body
    for name in table.keys() & body.keys():
        if not table[name](body[name]):
            raise bad(name, "this server does not support this parameter yet; leave it out", "unsupported_parameter")
    return {name: value for name, value in body.items() if name not in table}
