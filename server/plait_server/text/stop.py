"""Stop strings in text that comes in pieces of any size."""

from collections.abc import Sequence
from typing import NamedTuple


class Matched(NamedTuple):
    """``text`` may be sent; ``stop`` is the string that ended the text, if one did."""

    text: str
    stop: str | None


class StopMatcher:
    """Finds the first stop string to be complete, wherever the pieces are cut.

    Of several that end at the same character the longest wins, so that no part of it is sent. Text that may yet
    become a stop string is held back: never more than the longest stop string less one character.
    """

    def __init__(self, stops: Sequence[str], *, include_stop: bool = False) -> None:
        self._stops = tuple(stops)
        self._include = include_stop
        self._held = ""
        self._characters = frozenset("".join(stops))

    def push(self, piece: str) -> Matched:
        """After a match nothing more may be pushed."""
        if not self._stops or not piece:
            return Matched(piece, None)
        text = self._held + piece
        if match := self._first_complete(text):
            start, end = match
            self._held = ""
            return Matched(text[: end if self._include else start], text[start:end])
        held = self._length_to_hold(text)
        self._held = text[len(text) - held :]
        return Matched(text[: len(text) - held], None)

    def finish(self) -> str:
        """The text held back, when the sequence ended otherwise."""
        held, self._held = self._held, ""
        return held

    def _first_complete(self, text: str) -> tuple[int, int] | None:
        # A string's first occurrence is also the first to end; nothing that ended earlier can have been missed,
        # because everything that could still become a match was held back.
        found = [(start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0]
        if not found:
            return None
        end, start = min(found)
        return start, end

    def _length_to_hold(self, text: str) -> int:
        if text[-1] not in self._characters:
            return 0
        longest = 0
        for stop in self._stops:
            for length in range(min(len(stop) - 1, len(text)), longest, -1):
                if text.endswith(stop[:length]):
                    longest = length
                    break
        return longest
