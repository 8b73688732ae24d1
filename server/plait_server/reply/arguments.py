"""Arguments of a call as they are written: JSON that can be sent on before it is complete."""

import json
import re
from typing import Protocol

from plait_server.reply.until import Seen

QUOTED = re.compile(r'[^"\\\x00-\x1f]+|\\.|["\x00-\x1f]', re.DOTALL)
BARE = re.compile(r'[^"{}\[\]<]+|.', re.DOTALL)


class Arguments(Protocol):
    """Reads what follows the head of a call."""

    def push(self, text: str) -> Seen:
        """``before`` is JSON, to be put behind what came before; ``after`` is what follows the arguments."""

    def finish(self) -> str:
        """No more comes: what is still to be said, if anything."""


class JsonArguments:
    """An object as the model writes it: nobody knows yet whether it is valid, and what was sent cannot be taken back.

    It ends with its last brace, or before a ``<``, which no JSON has outside of strings. Line breaks and other control
    characters in strings, which models write as they are, become escapes.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._quoted = False
        self._held = ""
        """A backslash whose character has not come."""

    def push(self, text: str) -> Seen:
        text, at, said = self._held + text, 0, []
        while (match := (QUOTED if self._quoted else BARE).match(text, at)) is not None:
            token, at = match[0], match.end()
            if self._quoted:
                said.append(token if token >= " " else json.dumps(token)[1:-1])
                self._quoted = token != '"'
                continue
            if token == "<":
                return Seen("".join(said), text[at - 1 :])
            said.append(token)
            self._quoted = token == '"'
            self._depth += (token in "{[") - (token in "}]")
            if not self._depth:
                return Seen("".join(said), text[at:])
        self._held = text[at:]
        return Seen("".join(said), None)

    def finish(self) -> str:
        return ""
