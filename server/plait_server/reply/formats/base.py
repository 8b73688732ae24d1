"""What a format of tool calls is asked."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from plait_server.reply.arguments import Arguments
from plait_server.reply.events import Call

MAX_HEAD_CHARS = 1_000
"""Of a block, in which a call's name must have come: it is looked for with each piece."""
Mark = Callable[[str], str]
"""A mark as a grammar names it: some are tokens of their own."""


class Unfinished(Exception):
    """What looks like the end of a block is part of a string in it."""


@dataclass(frozen=True)
class Tool:
    """A function that the model may call. ``parameters`` is a JSON schema of an object."""

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @property
    def properties(self) -> Mapping[str, Any]:
        found = self.parameters.get("properties")
        return found if isinstance(found, dict) else {}

    @property
    def required(self) -> list[str]:
        found = self.parameters.get("required")
        names = [name for name in found if isinstance(name, str)] if isinstance(found, list) else []
        return list(dict.fromkeys(names))

    @property
    def optional(self) -> list[str]:
        return [name for name in self.properties if name not in self.required]

    def schema_of(self, name: str) -> dict[str, Any]:
        """Of one parameter, on its own: definitions that it may refer to come along."""
        found = self.properties.get(name)
        shared = {key: self.parameters[key] for key in ("$defs", "definitions") if key in self.parameters}
        return shared | (found if isinstance(found, dict) else {})


Tools = Mapping[str, Tool]


class Begun(NamedTuple):
    """A call that is known before its block is complete: its ``arguments`` are in the ``rest`` and what follows it."""

    name: str
    arguments: Arguments
    rest: str


class ToolFormat(ABC):
    """Where blocks of calls begin and end in a reply, and what they say."""

    opener: ClassVar[str]
    closer: ClassVar[str | None]
    """None: a block goes on to the end of the reply."""
    marks: ClassVar[tuple[str, ...]] = ()
    """Texts beside opener and closer that may be special tokens and have to be seen."""

    def begun(self, block: str, tools: Tools) -> Begun | None:  # noqa: ARG002
        """The call that a block begins with; None while that is not known, and where it cannot be known early."""
        return None

    @abstractmethod
    def calls(self, block: str, tools: Tools) -> list[Call]:
        """Those in what stands between opener and closer; none when it is no call.

        Raises ``Unfinished`` when the closer that was found belongs to a string.
        """

    @abstractmethod
    def rules(self, tools: Tools, mark: Mark, *, several: bool) -> list[str]:
        """Lark rules, ``calls`` among them: one call, or with ``several`` one or more."""
