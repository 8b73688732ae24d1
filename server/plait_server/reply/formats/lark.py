"""Pieces of grammars in the notation of Lark, as llguidance reads it."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

WHITESPACE = r"(\n[ ]{0,40}|[ ])?"
"""Between the tokens of JSON: enough for one line or indented, and no room to go on for ever."""
ANYTHING = "(?s:.*)"


def quoted(text: str) -> str:
    """A string in Lark is written as in JSON."""
    return json.dumps(text, ensure_ascii=False)


def json_rule(schema: Mapping[str, Any]) -> str:
    return "%json " + json.dumps({"x-guidance": {"whitespace_pattern": WHITESPACE}, **schema}, ensure_ascii=False)


def object_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments are an object, of what the function declares: where a schema leaves more open, nobody would read it."""
    closed = {"additionalProperties": False} if isinstance(schema.get("properties"), dict) else {}
    return {"type": "object", **closed, **schema}


def text_until(rule: str, closer: str, expression: str = ANYTHING) -> str:
    """A rule for text with its ``closer``, a token or a string, which is not in the text itself."""
    if closer.startswith("<["):
        return f"{rule}: /{expression}/ {closer}"
    return f"{rule}[suffix={closer}]: /{expression}/"


def slashed(expression: str) -> str:
    """As it stands between the slashes of Lark."""
    return re.sub(r"(?<!\\)((?:\\\\)*)/", r"\1\\/", expression).replace("\n", "\\n")


def one_of(rule: str, count: int) -> str:
    """``rule`` as one of ``rule_0``, ``rule_1``, ..."""
    return f"{rule}: " + " | ".join(f"{rule}_{place}" for place in range(count))


def listed(required: Sequence[str], optional: Sequence[str], comma: str) -> str:
    """All of ``required``, then any of ``optional`` in their order, with commas between what there is."""

    def chain(rest: Sequence[str]) -> str:
        return " ".join(f"({quoted(comma)} {part})?" for part in rest)

    if required:
        return f" {quoted(comma)} ".join(required) + " " + chain(optional)
    starts = [f"{part} {chain(optional[place + 1 :])}" for place, part in enumerate(optional)]
    return f"({' | '.join(starts)})?" if starts else ""
