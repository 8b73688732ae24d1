"""Calls as JSON: ``{"name": ..., "arguments": {...}}`` between marks (Hermes, Qwen, Granite)."""

import json
import re
from collections.abc import Mapping
from typing import Any

from plait_server.reply.arguments import JsonArguments
from plait_server.reply.events import Call
from plait_server.reply.formats.base import MAX_HEAD_CHARS, Begun, Mark, ToolFormat, Tools, Unfinished
from plait_server.reply.formats.lark import json_rule, object_schema, one_of, quoted

HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)')
"""The name first, then an object: as templates show it, and so as models write it."""


def read(block: str) -> Any:
    """None for what is not JSON. Raises ``Unfinished`` within a string."""
    try:
        return json.loads(block, strict=False)
    except json.JSONDecodeError as error:
        if error.msg.startswith("Unterminated string"):
            raise Unfinished from None
        return None
    except RecursionError:
        return None


def call_of(value: Any) -> Call | None:
    """Some models say ``parameters`` for ``arguments``, and some give them as a string."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):
        arguments = read_string(arguments)
    return Call(value["name"], dumped(arguments)) if isinstance(arguments, dict) else None


def read_string(text: str) -> Any:
    try:
        return read(text)
    except Unfinished:
        return None


def json_calls(block: str) -> list[Call]:
    """One call or a list of them; none when any of them is no call."""
    value = read_string(block)
    found = [call_of(each) for each in (value if isinstance(value, list) else [value])]
    return [call for call in found if call is not None] if None not in found else []


def dumped(arguments: Mapping[str, Any]) -> str:
    """Without lone surrogates, which JSON can spell and UTF-8 cannot carry."""
    return json.dumps(arguments, ensure_ascii=False).encode(errors="replace").decode()


def call_rules(tools: Tools) -> list[str]:
    """``call`` and what it is made of."""
    rules = [one_of("call", len(tools))]
    for place, tool in enumerate(tools.values()):
        head = quoted(f'{{"name": {json.dumps(tool.name)}, "arguments": ')
        rules.append(f'call_{place}: {head} args_{place} "}}"')
        rules.append(f"args_{place}: {json_rule(object_schema(tool.parameters))}")
    return rules


class Hermes(ToolFormat):
    """A block a call. Qwen 2.5 and 3, Qwen3-Next, Granite 4 and many others."""

    opener = "<tool_call>"
    closer = "</tool_call>"

    def begun(self, block: str, tools: Tools) -> Begun | None:  # noqa: ARG002
        if (head := HEAD.match(block, 0, MAX_HEAD_CHARS)) is None or not isinstance(name := read_string(head[1]), str):
            return None
        return Begun(name, JsonArguments(), block[head.end() :])

    def calls(self, block: str, tools: Tools) -> list[Call]:  # noqa: ARG002
        call = call_of(read(block))
        return [] if call is None else [call]

    def rules(self, tools: Tools, mark: Mark, *, several: bool) -> list[str]:
        more = ' ("\\n" block)*' if several else ""
        block = rf'{mark(self.opener)} "\n" call "\n" {mark(self.closer)}'
        return [f"calls: block{more}", f"block: {block}", *call_rules(tools)]


class Granite(ToolFormat):
    """One list of all calls, to the end of the reply. Granite 3."""

    opener = "<|tool_call|>"
    closer = None

    def calls(self, block: str, tools: Tools) -> list[Call]:  # noqa: ARG002
        return json_calls(block)

    def rules(self, tools: Tools, mark: Mark, *, several: bool) -> list[str]:
        more = ' (", " call)*' if several else ""
        return [f'calls: {mark(self.opener)} "[" call{more} "]"', *call_rules(tools)]
