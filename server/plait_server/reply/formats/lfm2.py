"""Calls as Python writes them: ``[name(key="value"), ...]`` (LFM2)."""

import ast
import warnings
from typing import Any

from plait_server.reply.events import Call
from plait_server.reply.formats.base import Mark, Tool, ToolFormat, Tools
from plait_server.reply.formats.json_calls import dumped, json_calls
from plait_server.reply.formats.lark import json_rule, listed, one_of, quoted

CONSTANTS = {"true": True, "false": False, "null": None}
"""Names of JSON's constants, which models write as often as Python's."""
MAX_CHARS = 1_000_000
"""More is not given to Python's parser."""


class Lfm2(ToolFormat):
    opener = "<|tool_call_start|>"
    closer = "<|tool_call_end|>"

    def calls(self, block: str, tools: Tools) -> list[Call]:  # noqa: ARG002
        block = block.strip()
        return json_calls(block) if block.startswith(("[{", "{")) else python_calls(block)

    def rules(self, tools: Tools, mark: Mark, *, several: bool) -> list[str]:
        more = ' (", " call)*' if several else ""
        rules = [f'calls: {mark(self.opener)} "[" call{more} "]" {mark(self.closer)}']
        rules.append(one_of("call", len(tools)))
        for place, tool in enumerate(tools.values()):
            rules += call_rules(f"call_{place}", tool)
        return rules


def python_calls(block: str) -> list[Call]:
    """Parsed, never run."""
    for text in (block, block.replace("\n", "\\n")):  # Models also break lines within strings.
        try:
            body = parsed(text)
            nodes = body.elts if isinstance(body, ast.List | ast.Tuple) else [body]
            return [python_call(node) for node in nodes]
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            pass
    return []


def parsed(text: str) -> ast.expr:
    if len(text) > MAX_CHARS:
        raise ValueError("too long")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Unknown escapes in strings are the model's, not ours.
        return ast.parse(text, mode="eval").body


def python_call(node: ast.expr) -> Call:
    """Raises ``ValueError`` for anything but a call with named arguments."""
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("no call with named arguments")
    named = {keyword.arg: value_of(keyword.value) for keyword in node.keywords if keyword.arg is not None}
    return Call(ast.unparse(node.func), dumped(named))


def value_of(node: ast.expr) -> Any:
    match node:
        case ast.Name(id=name) if name in CONSTANTS:
            return CONSTANTS[name]
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [value_of(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            return {key_of(key): value_of(value) for key, value in zip(keys, values, strict=True)}
        case ast.Constant(value=str(text)):
            return whole_characters(text)
        case _:
            return plain(ast.literal_eval(node))


def key_of(node: ast.expr | None) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return whole_characters(node.value)
    raise ValueError("keys must be strings")


def plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    raise ValueError("no value of JSON")


def whole_characters(text: str) -> str:
    """JSON spells some characters as two surrogates; in Python's notation these stay two."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def call_rules(name: str, tool: Tool) -> list[str]:
    """Values as JSON, which Python's parser reads too."""
    names = [*tool.required, *tool.optional]
    parts = [f"{name}_{place}" for place in range(len(names))]
    rules = []
    for part, parameter in zip(parts, names, strict=True):
        rules += [
            f"{part}: {quoted(parameter + '=')} {part}_value",
            f"{part}_value: {json_rule(tool.schema_of(parameter))}",
        ]
    count = len(tool.required)
    return [f'{name}: {quoted(tool.name + "(")} {listed(parts[:count], parts[count:], ", ")} ")"', *rules]
