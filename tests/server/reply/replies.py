"""Replies as models of each family write them, with what they say."""

import json
from dataclasses import dataclass, field
from typing import Any

from plait_server.reply.formats.base import Tool

WEATHER = Tool(
    "get_weather",
    {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "units": {"type": "string", "enum": ["C", "F"]},
            "hourly": {"type": "boolean"},
        },
        "required": ["city"],
    },
)
STORE = Tool(
    "store",
    {
        "type": "object",
        "properties": {
            "item": {"$ref": "#/$defs/item"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "note": {"type": "string"},
        },
        "required": ["item", "tags"],
        "$defs": {
            "item": {
                "type": "object",
                "properties": {"id": {"type": "integer"}, "price": {"type": "number"}},
                "required": ["id"],
                "additionalProperties": False,
            }
        },
    },
)
PING = Tool("ping")
TOOLS = {tool.name: tool for tool in (WEATHER, STORE, PING)}


@dataclass(frozen=True)
class Reply:
    text: str
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    content: str = ""

    def __str__(self) -> str:
        return self.text[:40]


def hermes(*calls: tuple[str, dict[str, Any]]) -> str:
    return "\n".join(
        f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>" for name, arguments in calls
    )


ROME = ("get_weather", {"city": "Rome", "days": 3})
OSLO = ("get_weather", {"city": 'Ås </b> "x" 雪', "hourly": True})
THING = ("store", {"item": {"id": 1, "price": 2.5}, "tags": ["a", "b, c"]})
TRICKY = ("get_weather", {"city": "a </tool_call> b"})
PLAIN = [
    Reply("", [], ""),
    Reply("Just text, with a < and a <tool and {braces}.", [], "Just text, with a < and a <tool and {braces}."),
    Reply("  \n spaces around \n ", [], "  \n spaces around \n "),
]
REPLIES: dict[str, list[Reply]] = {
    "hermes": [
        *PLAIN,
        Reply(hermes(ROME), [ROME]),
        Reply("Let me look.\n\n" + hermes(ROME, OSLO) + "\n", [ROME, OSLO], "Let me look."),
        Reply(hermes(ROME) + "\nDone.", [ROME], "Done."),
        Reply(hermes(TRICKY), [TRICKY]),
        Reply('<tool_call>{"name": "ping", "arguments": "{}"}', [("ping", {})]),
        Reply('<tool_call>{"name": "ping", "parameters": {"a": null}}</tool_call>', [("ping", {"a": None})]),
        Reply("<tool_call>\nnot JSON\n</tool_call> x", [], "<tool_call>\nnot JSON\n</tool_call> x"),
        Reply('<tool_call>{"name": 3}</tool_call>' + hermes(ROME), [ROME], '<tool_call>{"name": 3}</tool_call>'),
        Reply('<tool_call>\n{"name": "ping", "argu', [], '<tool_call>\n{"name": "ping", "argu'),
        Reply("<tool_call>" * 3, [], "<tool_call>" * 3),
    ],
    "granite": [
        *PLAIN,
        Reply("<|tool_call|>" + json.dumps([{"name": n, "arguments": a} for n, a in (ROME, THING)]), [ROME, THING]),
        Reply("Yes.\n<|tool_call|> " + json.dumps({"name": "ping", "arguments": {}}), [("ping", {})], "Yes."),
        Reply("<|tool_call|>[{]", [], "<|tool_call|>[{]"),
    ],
    "qwen_xml": [
        *PLAIN,
        Reply(
            "<tool_call>\n<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
            "</function>\n</tool_call>",
            [ROME],
        ),
        Reply(
            'I store it.\n<tool_call>\n<function=store>\n<parameter=item>\n{"id": 1, "price": 2.5}\n</parameter>\n'
            '<parameter=tags>\n["a", "b, c"]\n</parameter>\n<parameter=note>\nline 1\n\n<b>line 2</b>\n</parameter>\n'
            "</function>\n</tool_call>\n<tool_call>\n<function=ping>\n</function>\n</tool_call>",
            [("store", THING[1] | {"note": "line 1\n\n<b>line 2</b>"}), ("ping", {})],
            "I store it.",
        ),
        Reply("<tool_call><function=ping><parameter=x>7</tool_call>", [("ping", {"x": 7})]),
        Reply("<tool_call>nothing</tool_call>", [], "<tool_call>nothing</tool_call>"),
    ],
    "lfm2": [
        *PLAIN,
        Reply('<|tool_call_start|>[get_weather(city="Rome", days=3)]<|tool_call_end|>', [ROME]),
        Reply(
            "Checking.<|tool_call_start|>[get_weather(city='Rome', days=3), store(item={\"id\": 1, 'price': 2.5}, "
            'tags=["a", "b, c"]), ping()]<|tool_call_end|>Now.',
            [ROME, THING, ("ping", {})],
            "Checking.Now.",
        ),
        Reply(
            '<|tool_call_start|>[ping(a=true, b=None, c=-1.5, d="x\ny")]<|tool_call_end|>',
            [("ping", {"a": True, "b": None, "c": -1.5, "d": "x\ny"})],
        ),
        Reply('<|tool_call_start|>[{"name": "ping", "arguments": {}}]<|tool_call_end|>', [("ping", {})]),
        Reply(r'<|tool_call_start|>[ping(a="\ud83d\ude00")]<|tool_call_end|>', [("ping", {"a": "😀"})]),
        Reply(
            "<|tool_call_start|>[__import__]<|tool_call_end|>", [], "<|tool_call_start|>[__import__]<|tool_call_end|>"
        ),
        Reply("<|tool_call_start|>[f(g())]<|tool_call_end|>", [], "<|tool_call_start|>[f(g())]<|tool_call_end|>"),
    ],
    "gemma": [
        *PLAIN,
        Reply("<start_function_call>call:get_weather{city:<escape>Rome<escape>,days:3}<end_function_call>", [ROME]),
        Reply(
            "Ok. <start_function_call>call:store{item:{id:1,price:2.5},tags:[<escape>a<escape>,<escape>b, c<escape>]}"
            "<end_function_call><start_function_call>call:ping{}<end_function_call>",
            [THING, ("ping", {})],
            "Ok.",
        ),
        Reply(
            "<start_function_call>call:ping{a:}<end_function_call>",
            [],
            "<start_function_call>call:ping{a:}<end_function_call>",
        ),
    ],
    "gemma4": [
        *PLAIN,
        Reply('<|tool_call>call:get_weather{city:<|"|>Rome<|"|>,days:3}<tool_call|>', [ROME]),
    ],
}
CASES = [(name, reply) for name, replies in REPLIES.items() for reply in replies]
