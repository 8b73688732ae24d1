"""What comes out of a reply. Texts come in pieces, calls whole."""

from typing import NamedTuple


class Reasoning(NamedTuple):
    text: str


class Content(NamedTuple):
    text: str


class Call(NamedTuple):
    name: str
    arguments: str
    """JSON, as clients of OpenAI's API expect it."""


Event = Reasoning | Content | Call
