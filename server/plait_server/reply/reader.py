"""One reply, read as it comes."""

from collections.abc import Iterable

from plait_server.reply.calls import CallReader
from plait_server.reply.events import Content, Event, Reasoning
from plait_server.reply.reasoning import ReasoningSplit


class ReplyReader:
    """First reasoning is split off, then calls are found in the rest. Streams and whole answers go through the same."""

    def __init__(self, reasoning: ReasoningSplit | None, calls: CallReader | None) -> None:
        self._reasoning = reasoning
        self._calls = calls

    @property
    def called(self) -> bool:
        """Whether there was a call."""
        return self._calls is not None and self._calls.count > 0

    def read(self, piece: str, *, last: bool) -> list[Event]:
        """After the ``last`` piece nothing more may come."""
        events: list[Event] = []
        for reasoning, rest in self._split(piece, last=last):
            if reasoning:
                events.append(Reasoning(reasoning))
            if rest:
                events += self._calls.push(rest) if self._calls else [Content(rest)]
        if last and self._calls is not None:
            events += self._calls.finish()
        return events

    def _split(self, piece: str, *, last: bool) -> Iterable[tuple[str, str]]:
        if self._reasoning is None:
            yield "", piece
            return
        yield self._reasoning.push(piece)
        if last:
            yield self._reasoning.finish()
