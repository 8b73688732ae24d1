"""Calls as tags: ``<function=NAME><parameter=KEY>value</parameter></function>`` (Qwen3-Coder, Qwen 3.5)."""

import re
from typing import Any

from plait_server.reply.events import Call
from plait_server.reply.formats.base import MAX_HEAD_CHARS, Begun, Mark, Tool, ToolFormat, Tools
from plait_server.reply.formats.lark import ANYTHING, json_rule, one_of, quoted, slashed, text_until
from plait_server.reply.formats.tagged import TaggedArguments, is_text

HEAD = re.compile(r"\s*<function=([^>\s]+)>")
END = quoted("\n</parameter>\n")


class QwenXml(ToolFormat):
    opener = "<tool_call>"
    closer = "</tool_call>"

    def begun(self, block: str, tools: Tools) -> Begun | None:
        if (head := HEAD.match(block, 0, MAX_HEAD_CHARS)) is None:
            return None
        return Begun(head[1], TaggedArguments(tools.get(head[1], Tool(head[1]))), block[head.end() :])

    def calls(self, block: str, tools: Tools) -> list[Call]:  # noqa: ARG002
        """What does not begin as a call is none."""
        return []

    def rules(self, tools: Tools, mark: Mark, *, several: bool) -> list[str]:
        more = ' ("\\n" block)*' if several else ""
        block = f'{mark(self.opener)} "\\n" function "\\n" {mark(self.closer)}'
        rules = [f"calls: block{more}", f"block: {block}"]
        rules.append(one_of("function", len(tools)))
        for place, tool in enumerate(tools.values()):
            rules += function_rules(f"function_{place}", tool)
        return rules


def function_rules(name: str, tool: Tool) -> list[str]:
    """Parameters in the schema's order, those that are not required as they please."""
    parts, rules = [], []
    for place, parameter in enumerate(
        [*tool.properties, *(name for name in tool.required if name not in tool.properties)]
    ):
        rule = f"{name}_{place}"
        parts.append(rule if parameter in tool.required else f"{rule}?")
        head = quoted(f"<parameter={parameter}>\n")
        rules += [f"{rule}: {head} {rule}_value", value_rule(f"{rule}_value", tool.schema_of(parameter))]
    head = quoted(f"<function={tool.name}>\n")
    return [f'{name}: {head} {" ".join(parts)} "</function>"', *rules]


def value_rule(rule: str, schema: dict[str, Any]) -> str:
    """A value and the tag that ends it."""
    if not is_text(schema):
        return f"{rule}: {rule}_json {END}\n{rule}_json: {json_rule(schema)}"
    options = schema.get("enum", [schema["const"]] if "const" in schema else [])
    texts = [option for option in options if isinstance(option, str)]
    if texts:
        return f"{rule}: ({' | '.join(map(quoted, texts))}) {END}"
    pattern = schema.get("pattern")
    return text_until(rule, END, searched(pattern) if isinstance(pattern, str) else ANYTHING)


def searched(pattern: str) -> str:
    """JSON schema looks for a pattern anywhere; this is what a whole value looks like."""
    head = "" if pattern.startswith("^") else ANYTHING
    tail = "" if pattern.endswith("$") else ANYTHING
    return f"{head}(?:{slashed(pattern.removeprefix('^').removesuffix('$'))}){tail}"
