"""Looking for a mark in text that comes in pieces of any size."""

from typing import NamedTuple


class Seen(NamedTuple):
    """``before`` surely precedes the mark; ``after`` follows it, and is None until it was found."""

    before: str
    after: str | None


class Until:
    """Holds back what may yet become the mark: less than its length."""

    def __init__(self, mark: str) -> None:
        self.mark = mark
        self._held = ""

    def push(self, piece: str) -> Seen:
        text = self._held + piece
        before, found, after = text.partition(self.mark)
        if found:
            self._held = ""
            return Seen(before, after)
        length = next(
            (n for n in range(min(len(self.mark) - 1, len(text)), 0, -1) if self.mark.startswith(text[-n:])), 0
        )
        self._held = text[len(text) - length :]
        return Seen(text[: len(text) - length], None)

    def finish(self) -> str:
        """The text held back, when no more comes."""
        held, self._held = self._held, ""
        return held


class Trimmed:
    """Text less the white space around it."""

    def __init__(self) -> None:
        self._began = False
        self._space = ""
        """Seen, and not yet known to have something behind it."""

    def push(self, piece: str) -> str:
        text = self._space + piece
        if not self._began:
            text = text.lstrip()
            self._began = bool(text)
        kept = text.rstrip()
        self._space = text[len(kept) :]
        return kept
