"""Arguments between tags, as JSON while they are written: texts piece by piece, other values when they are complete."""

import json
import re
from typing import Any

from plait_server.reply.formats.base import Tool
from plait_server.reply.formats.json_calls import dumped, read_string
from plait_server.reply.until import Seen

CLOSER = "</tool_call>"
OVER = "</function>"
TAGS = ("</parameter>", "<parameter=", OVER, CLOSER)
LONGEST = max(map(len, TAGS))
NEXT = re.compile(rf"<parameter=(?P<name>[^<>\n]+)>|(?P<over>{OVER})|(?={CLOSER})")
END = re.compile(rf"\n?(?:</parameter>|(?=<parameter=)|(?:{OVER}\s*)?(?={CLOSER}))")
"""Of a value. The tag may be missing, and the end of the function is one only where its block ends too."""


class TaggedArguments:
    """``<parameter=KEY>value</parameter>``, any number of times. Cut off, they stay as open as they were written."""

    def __init__(self, tool: Tool) -> None:
        self._tool = tool
        self._unread = ""
        self._name: str | None = None
        """Of the value that we are in."""
        self._texts = False
        """That value is a text, and told piece by piece."""
        self._fresh = False
        """Nothing of it was seen yet."""
        self._value = ""
        """As far as it goes, where it is not told yet."""
        self._before = "{"
        """What stands before the next value."""
        self._over = False

    def push(self, text: str) -> Seen:
        self._unread += text
        said: list[str] = []
        while (match := (NEXT if self._name is None else END).search(self._unread)) is not None:
            value, self._unread = self._unread[: match.start()], self._unread[match.end() :]
            if self._name is not None:
                said.append(self._last(self._name, value))
            elif match["name"] is not None:
                said.append(self._opened(match["name"]))
            elif match["over"] is not None:
                self._over = True
            else:
                return Seen("".join(said) + self._close(), self._unread)
        kept = self._held()
        value, self._unread = self._unread[:kept], self._unread[kept:]
        if self._name is not None:
            said.append(self._piece(value))
        return Seen("".join(said), None)

    def finish(self) -> str:
        return self._close() if self._over else ""

    def _opened(self, name: str) -> str:
        self._name, self._fresh, self._over, self._value = name, True, False, ""
        self._texts = is_text(self._tool.schema_of(name))
        if not self._texts:
            return ""
        before, self._before = self._before, ", "
        return f'{before}{json.dumps(name, ensure_ascii=False)}: "'

    def _piece(self, text: str) -> str:
        """Of a text, which may begin on a line of its own; other values are told when they are complete."""
        if not self._texts:
            self._value += text
            return ""
        if self._fresh and text:
            text, self._fresh = text.removeprefix("\n"), False
        return json.dumps(text, ensure_ascii=False)[1:-1]

    def _last(self, name: str, value: str) -> str:
        self._name = None
        if self._texts:
            return self._piece(value) + '"'
        before, self._before = self._before, ", "
        return before + dumped({name: value_of(self._tool, name, self._value + value)})[1:-1]

    def _close(self) -> str:
        return "{}" if self._before == "{" else "}"

    def _held(self) -> int:
        """Where that begins which may become a tag."""
        text = self._unread
        start = text.rfind(OVER)
        if start < 0 or not CLOSER.startswith(text[start + len(OVER) :].lstrip()):
            places = range(max(0, len(text) - LONGEST), len(text))
            start = next((at for at in places if any(tag.startswith(text[at:]) for tag in TAGS)), len(text))
        if self._name is None:
            return text.rfind("<parameter=") if "<parameter=" in text else start
        return start - (start > 0 and text[start - 1] == "\n")


def value_of(tool: Tool, name: str, text: str) -> Any:
    """A string as it stands; anything else is JSON, or a string where it turns out to be none."""
    text = text.removeprefix("\n").removesuffix("\n")
    if is_text(tool.schema_of(name)):
        return text
    value = read_string(text)
    return text if value is None and text.strip() != "null" else value


def is_text(schema: dict[str, Any]) -> bool:
    return schema.get("type") == "string" or schema.get("type") == ["string"]
