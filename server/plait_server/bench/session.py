"""What is asked of a server: sessions of one turn or several, each going on from the answers before."""

from typing import NamedTuple


class Turn(NamedTuple):
    text: str
    max_tokens: int


class Session(NamedTuple):
    turns: tuple[Turn, ...]
    system: str = ""
    at: float | None = None
    """Seconds from the start at which it arrives; None leaves that to the pace."""
