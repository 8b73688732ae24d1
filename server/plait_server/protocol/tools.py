"""Tools that a model may call, and which of them it shall."""

import re
from typing import Annotated, Any, NamedTuple

import orjson
from pydantic import Field, PlainValidator, WithJsonSchema

from plait_server.reply.formats.base import Tool

MAX_TOOLS = 512
NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
MODES = ("none", "auto", "required")


def tools_of(value: Any) -> list[dict[str, Any]]:
    """As the client gave them: the template may know more keys than we."""
    given = [] if value is None else value
    if not isinstance(given, list) or not all(isinstance(tool, dict) for tool in given):
        raise ValueError("must be a list of objects")
    if len(given) > MAX_TOOLS:
        raise ValueError(f"at most {MAX_TOOLS} tools are allowed, not {len(given)}")
    for tool in given:
        check_function(tool)
    names = [tool["function"]["name"] for tool in given]
    if len(set(names)) < len(names):
        raise ValueError("two tools have the same name")
    try:
        orjson.dumps(given)
    except TypeError:
        raise ValueError("are nested too deeply") from None
    return [without_nulls(tool) | {"function": without_nulls(tool["function"])} for tool in given]


def check_function(tool: dict[str, Any]) -> None:
    function = tool.get("function")
    if tool.get("type") != "function" or not isinstance(function, dict):
        raise ValueError('each must be {"type": "function", "function": {...}}; other types are not supported')
    name = function.get("name")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ValueError("a function's name must be 1 to 128 letters, digits or any of _ . : / -")
    if not isinstance(function.get("parameters"), dict | None):
        raise ValueError("a function's parameters must be a JSON schema, as an object")
    if not isinstance(function.get("description"), str | None):
        raise ValueError("a function's description must be a string")


def without_nulls(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def tool_of(given: dict[str, Any]) -> Tool:
    function = given["function"]
    return Tool(function["name"], function.get("parameters") or {})


class ToolChoice(NamedTuple):
    """``names``: only these; None is all."""

    mode: str
    names: tuple[str, ...] | None = None
    one: bool = False
    """Exactly one call."""


def choice_of(value: Any) -> ToolChoice | None:
    """A mode, the name of the one function to call, or a mode and some of the tools."""
    if value is None:
        return None
    if isinstance(value, str) and value in MODES:
        return ToolChoice(value)
    match value:
        case {"type": "function", "function": {"name": str(name)}}:
            return ToolChoice("required", (name,), one=True)
        case {"type": "allowed_tools", "allowed_tools": {"mode": "auto" | "required" as mode, "tools": list(tools)}}:
            return ToolChoice(mode, tuple(map(allowed_name, tools)))
    raise ValueError('must be "none", "auto", "required" or {"type": "function", "function": {"name": ...}}')


def allowed_name(value: Any) -> str:
    match value:
        case {"function": {"name": str(name)}}:
            return name
    raise ValueError("allowed tools must be functions with a name")


def calls_of(value: Any) -> list[dict[str, Any]]:
    """Calls in the history, with their arguments as the objects that templates expect."""
    given = [] if value is None else value
    if not isinstance(given, list):
        raise ValueError("must be a list of calls")
    return [call_for_template(call) for call in given]


def call_for_template(call: Any) -> dict[str, Any]:
    match call:
        case {"function": {"name": str()} as function}:
            return without_nulls(call) | {"function": function | {"arguments": arguments_of(function.get("arguments"))}}
    raise ValueError("each call must have a function with a name")


def arguments_of(value: Any) -> dict[str, Any] | str:
    """Templates expect an object. What is no JSON stays as the model wrote it: a call gone wrong is history too."""
    found = value
    if isinstance(value, str):
        try:
            found = orjson.loads(value or "{}")
        except orjson.JSONDecodeError:
            return value
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise ValueError("a call's arguments must be a JSON object")
    return found


TOOL = {
    "type": "object",
    "properties": {
        "type": {"const": "function"},
        "function": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "pattern": f"^{NAME.pattern}$"},
                "description": {"type": "string"},
                "parameters": {"type": "object"},
            },
            "required": ["name"],
        },
    },
    "required": ["type", "function"],
}
NAMED = {
    "type": "object",
    "properties": {"type": {"const": "function"}, "function": {"type": "object", "required": ["name"]}},
    "required": ["type", "function"],
}
ToolList = Annotated[
    list[dict[str, Any]],
    PlainValidator(tools_of),
    WithJsonSchema({"anyOf": [{"type": "array", "items": TOOL, "maxItems": MAX_TOOLS}, {"type": "null"}]}),
]
Choice = Annotated[
    ToolChoice | None,
    PlainValidator(choice_of),
    WithJsonSchema({"anyOf": [{"enum": list(MODES)}, NAMED, {"type": "null"}]}),
    Field(description="Whether the answer may, must or must not call a tool, or which one it must call."),
]
Calls = Annotated[
    list[dict[str, Any]],
    PlainValidator(calls_of),
    WithJsonSchema({"anyOf": [{"type": "array", "items": {"type": "object"}}, {"type": "null"}]}),
]
