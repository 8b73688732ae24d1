"""The reasoning of ``<think>`` models: what stands between the marks, apart from what follows."""

from enum import Enum

from plait_server.reply.until import Trimmed, Until

OPENER = "<think>"
CLOSER = "</think>"


class Place(Enum):
    BEFORE = "before"
    INSIDE = "inside"
    AFTER = "after"


class ReasoningSplit:
    """``opened``: the prompt ends with the opener, as some templates write it; else reasoning begins with its own.

    Reasoning comes without the white space around it, and so does the beginning of what follows it.
    """

    def __init__(self, *, opened: bool) -> None:
        self._opened = opened
        self._place = Place.BEFORE
        self._head = ""
        """Not yet told from an opener."""
        self._closer = Until(CLOSER)
        self._reasoning = Trimmed()
        self._bare = True
        """Only white space was seen behind the reasoning."""

    def push(self, piece: str) -> tuple[str, str]:
        """What is known by now of reasoning, and of the rest."""
        match self._place:
            case Place.BEFORE:
                return self._before(self._head + piece)
            case Place.INSIDE:
                return self._inside(piece)
            case Place.AFTER:
                return "", self._after(piece)

    def finish(self) -> tuple[str, str]:
        """What was held back. Reasoning that was never closed is all there is."""
        if self._place is Place.BEFORE:
            return ("", "") if self._opened else ("", self._head)
        if self._place is Place.INSIDE:
            return self._reasoning.push(self._closer.finish()), ""
        return "", ""

    def _before(self, text: str) -> tuple[str, str]:
        bare = text.lstrip()
        if bare.startswith(OPENER):
            self._place = Place.INSIDE
            return self._inside(bare.removeprefix(OPENER))
        if OPENER.startswith(bare):
            self._head = text
            return "", ""
        if self._opened:
            self._place = Place.INSIDE
            return self._inside(text)
        self._place, self._bare = Place.AFTER, False
        return "", text

    def _inside(self, piece: str) -> tuple[str, str]:
        before, after = self._closer.push(piece)
        reasoning = self._reasoning.push(before)
        if after is None:
            return reasoning, ""
        self._place = Place.AFTER
        return reasoning, self._after(after)

    def _after(self, piece: str) -> str:
        if self._bare:
            piece = piece.lstrip()
            self._bare = not piece
        return piece
