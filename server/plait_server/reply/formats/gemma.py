"""Calls in Gemma's own notation: ``call:name{key:<escape>text<escape>,count:3}``."""

import json
import re
from collections.abc import Mapping
from typing import Any, ClassVar

from plait_server.reply.events import Call
from plait_server.reply.formats.base import Mark, Tool, ToolFormat, Tools
from plait_server.reply.formats.json_calls import dumped
from plait_server.reply.formats.lark import listed, one_of, quoted, text_until

CALL = re.compile(r"\s*call:([^{\s]+)\s*(\{.*\})\s*", re.DOTALL)
KEY = re.compile(r"\s*([^:{}\[\],]+?)\s*:")
BARE = re.compile(r"[^,\[\]{}]*")
MAX_DEPTH = 64
KINDS = {"integer": r"/-?(0|[1-9][0-9]{0,17})/", "number": r"/-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,17})?/"}


class Gemma(ToolFormat):
    """As FunctionGemma, which is Gemma 3, was taught."""

    opener = "<start_function_call>"
    closer = "<end_function_call>"
    quote: ClassVar[str] = "<escape>"
    marks = (quote,)

    def calls(self, block: str, tools: Tools) -> list[Call]:  # noqa: ARG002
        match = CALL.fullmatch(block)
        if match is None:
            return []
        try:
            reader = Reader(match[2], self.quote)
            value = reader.value(0)
            reader.end()
        except ValueError:
            return []
        return [Call(match[1], dumped(value))] if isinstance(value, dict) else []

    def rules(self, tools: Tools, mark: Mark, *, several: bool) -> list[str]:
        writer = Writer(mark(self.quote))
        more = " block*" if several else ""
        rules = [f"calls: block{more}", f"block: {mark(self.opener)} call {mark(self.closer)}"]
        rules.append(one_of("call", len(tools)))
        for place, tool in enumerate(tools.values()):
            writer.rules.append(f"call_{place}: {quoted(f'call:{tool.name}')} {writer.tool(tool)}")
        return [*rules, *writer.rules]


class Gemma4(Gemma):
    opener = "<|tool_call>"
    closer = "<tool_call|>"
    quote = '<|"|>'
    marks = (quote,)


class Reader:
    """Reads values. Raises ``ValueError``."""

    def __init__(self, text: str, quote: str) -> None:
        self._text = text
        self._quote = quote
        self._at = 0

    def end(self) -> None:
        if self._text[self._at :].strip():
            raise ValueError("more than one value")

    def value(self, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise ValueError("nested too deeply")
        self._skip_space()
        if self._takes(self._quote):
            return self._quoted()
        if self._takes("{"):
            return dict(self._items("}", depth, keyed=True))
        if self._takes("["):
            return [value for _, value in self._items("]", depth, keyed=False)]
        return self._bare()

    def _items(self, end: str, depth: int, *, keyed: bool) -> list[tuple[str, Any]]:
        items: list[tuple[str, Any]] = []
        self._skip_space()
        while not self._takes(end):
            if items and not self._takes(","):
                raise ValueError("a comma is missing")
            items.append((self._key() if keyed else "", self.value(depth + 1)))
            self._skip_space()
        return items

    def _key(self) -> str:
        self._skip_space()
        if self._takes(self._quote):
            key = self._quoted()
            self._skip_space()
            if not self._takes(":"):
                raise ValueError("a colon is missing")
            return key
        match = KEY.match(self._text, self._at)
        if match is None:
            raise ValueError("a key is missing")
        self._at = match.end()
        return match[1]

    def _quoted(self) -> str:
        end = self._text.find(self._quote, self._at)
        if end < 0:
            raise ValueError("a string does not end")
        text, self._at = self._text[self._at : end], end + len(self._quote)
        return text

    def _bare(self) -> Any:
        match = BARE.match(self._text, self._at)
        assert match is not None
        self._at = match.end()
        text = match[0].strip()
        if not text:
            raise ValueError("a value is missing")
        try:
            return json.loads(text)
        except ValueError:
            return text

    def _takes(self, what: str) -> bool:
        if not self._text.startswith(what, self._at):
            return False
        self._at += len(what)
        return True

    def _skip_space(self) -> None:
        while self._at < len(self._text) and self._text[self._at].isspace():
            self._at += 1


class Writer:
    """Grammar rules of values, as far as their schemas say in a way that this notation can follow."""

    def __init__(self, quote: str) -> None:
        self._quote = quote
        self._text = f"{quote} rest_of_text"
        self.rules = [text_until("rest_of_text", quote)]
        self._any: str | None = None
        self._referred: dict[str, str] = {}
        """Definitions of the tool at hand that have a rule."""
        self._root: Mapping[str, Any] = {}

    def tool(self, tool: Tool) -> str:
        self._root, self._referred = tool.parameters, {}
        return self._mapping(tool)

    def _mapping(self, tool: Tool) -> str:
        def pair(name: str) -> str:
            return f"{quoted(name + ':')} {self._value(tool.schema_of(name))}"

        return f'"{{" {listed(list(map(pair, tool.required)), list(map(pair, tool.optional)), ",")} "}}"'

    def _value(self, schema: Mapping[str, Any]) -> str:
        options = schema.get("enum", [schema["const"]] if "const" in schema else [])
        if options:
            return self._rule(" | ".join(self._literal(option) for option in options))
        match schema:
            case {"$ref": str(reference)}:
                return self._definition(reference)
            case {"type": "string"}:
                return self._rule(self._text)
            case {"type": "boolean"}:
                return self._rule('"true" | "false"')
            case {"type": "integer" | "number" as kind}:
                return self._rule(KINDS[kind])
            case {"type": "array", "items": dict(items)}:
                item = self._value(items)
                return self._rule(f'"[" ({item} ("," {item})*)? "]"')
            case {"type": "object", "properties": dict()}:
                return self._rule(self._mapping(Tool("", schema)))
            case _:
                return self._anything()

    def _definition(self, reference: str) -> str:
        """Its rule has a name before it is written: definitions may refer to themselves."""
        if reference not in self._referred:
            found: Any = self._root
            for key in reference.removeprefix("#").strip("/").split("/"):
                found = found.get(key) if isinstance(found, dict) else None
            self._referred[reference] = name = f"defined_{len(self.rules)}"
            self.rules.append("")
            place = len(self.rules) - 1
            self.rules[place] = f"{name}: {self._value(found if isinstance(found, dict) else {})}"
        return self._referred[reference]

    def _literal(self, value: object) -> str:
        if isinstance(value, str):
            return f"{self._quote} {quoted(value)} {self._quote}"
        return quoted(json.dumps(value))

    def _anything(self) -> str:
        if self._any is None:
            self._any = any_value = f"value_{len(self.rules)}"
            pair = f'/[A-Za-z_][A-Za-z0-9_]*/ ":" {any_value}'
            lists = f'"[" ({any_value} ("," {any_value})*)? "]" | "{{" ({pair} ("," {pair})*)? "}}"'
            self.rules.append(f'{any_value}: {self._text} | "true" | "false" | "null" | {KINDS["number"]} | {lists}')
        return self._any

    def _rule(self, body: str) -> str:
        name = f"value_{len(self.rules)}"
        self.rules.append(f"{name}: {body}")
        return name
