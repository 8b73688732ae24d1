"""What comes out of a reply: texts in pieces, calls in one or in pieces."""

from collections.abc import Iterable
from typing import NamedTuple


class Reasoning(NamedTuple):
    text: str


class Content(NamedTuple):
    text: str


class Call(NamedTuple):
    """``arguments`` are JSON, as clients of OpenAI's API expect it, or what is known of it by now."""

    name: str
    arguments: str


class MoreArguments(NamedTuple):
    """To be put behind those of the last call."""

    text: str


Event = Reasoning | Content | Call | MoreArguments


def whole_calls(events: Iterable[Event]) -> list[Call]:
    """The calls among the events, put together."""
    calls: list[Call] = []
    for event in events:
        if isinstance(event, Call):
            calls.append(event)
        elif isinstance(event, MoreArguments):
            calls[-1] = Call(calls[-1].name, calls[-1].arguments + event.text)
    return calls
