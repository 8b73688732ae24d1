"""Calls of tools in text that comes in pieces of any size."""

from plait_server.reply.events import Call, Content
from plait_server.reply.formats.base import ToolFormat, Tools, Unfinished
from plait_server.reply.until import Until


class CallReader:
    """Text outside of blocks is content, less the white space next to a call. What turns out to be no call is content.

    A block is read when it is complete: until then nobody knows whether it is a call at all.
    """

    def __init__(self, style: ToolFormat, tools: Tools, *, parallel: bool = True) -> None:
        self._style = style
        self._tools = tools
        self._parallel = parallel
        self._opener = Until(style.opener)
        self._block: str | None = None
        """Read so far of the block that we are in."""
        self._searched = 0
        """How much of it needs no other look for the closer."""
        self._space = ""
        """White space that is content if more content follows."""
        self._bare = False
        """Only white space has come since the last call."""
        self.count = 0
        """Calls found."""

    def push(self, piece: str) -> list[Content | Call]:
        events: list[Content | Call] = []
        rest: str | None = piece
        while rest is not None:
            rest = self._outside(rest, events) if self._block is None else self._inside(rest, events)
        return events

    def finish(self) -> list[Content | Call]:
        """What was held back. A last block may lack its closer."""
        events: list[Content | Call] = []
        if self._block is None:
            self._content(self._opener.finish(), events)
        elif not self._last(self._block, events):
            self._content(self._style.opener + self._block, events)
        if self._space:
            events.append(Content(self._space))
        return events

    def _outside(self, piece: str, events: list[Content | Call]) -> str | None:
        """What is still to be read, once a block has begun."""
        before, after = self._opener.push(piece)
        self._content(before, events)
        if after is not None:
            self._block, self._searched = "", 0
        return after

    def _inside(self, piece: str, events: list[Content | Call]) -> str | None:
        """What is still to be read, once the block has ended."""
        assert self._block is not None
        self._block += piece
        closer = self._style.closer
        while closer is not None and (end := self._block.find(closer, self._searched)) >= 0:
            block, rest = self._block[:end], self._block[end + len(closer) :]
            try:
                found = self._read(block, events)
            except Unfinished:
                self._searched = end + len(closer)
                continue
            self._block = None
            if not found:
                self._content(self._style.opener + block + closer, events)
            return rest
        self._searched = max(self._searched, len(self._block) - len(closer or "") + 1)
        return None

    def _last(self, block: str, events: list[Content | Call]) -> bool:
        try:
            return self._read(block, events)
        except Unfinished:
            return False

    def _read(self, block: str, events: list[Content | Call]) -> bool:
        """Whether it holds calls."""
        calls = self._style.calls(block, self._tools)
        kept = calls if self._parallel else calls[: 1 - min(self.count, 1)]
        self.count += len(kept)
        events += kept
        if calls:
            self._space, self._bare = "", True
        return bool(calls)

    def _content(self, text: str, events: list[Content | Call]) -> None:
        text = self._space + text
        if self._bare:
            text = text.lstrip()
            self._bare = not text
        kept = text.rstrip()
        self._space = text[len(kept) :]
        if kept:
            events.append(Content(kept))
