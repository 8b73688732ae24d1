"""Calls of tools in text that comes in pieces of any size."""

from plait_server.reply.arguments import Arguments
from plait_server.reply.events import Call, Content, MoreArguments
from plait_server.reply.formats.base import Begun, ToolFormat, Tools, Unfinished
from plait_server.reply.until import Until

Said = Content | Call | MoreArguments


class CallReader:
    """Text outside of blocks is content, less the white space next to a call. What turns out to be no call is content.

    A block that begins as calls of its format do is a call, whose arguments are told as they come. Any other is read
    when it is complete: until then nobody knows whether it is a call at all.
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
        self._arguments: Arguments | None = None
        """Reads the call that we are in."""
        self._dropped = False
        """That call is one too many."""
        self._closer: Until | None = None
        """The arguments are over, and what follows up to the closer says nothing."""
        self._space = ""
        """White space that is content if more content follows."""
        self._bare = False
        """Only white space has come since the last call."""
        self.count = 0
        """Calls found."""

    def push(self, piece: str) -> list[Said]:
        events: list[Said] = []
        rest: str | None = piece
        while rest is not None:
            if self._block is not None:
                rest = self._inside(rest, events)
            elif self._arguments is not None:
                rest = self._written(self._arguments, rest, events)
            elif self._closer is not None:
                rest = self._behind(self._closer, rest)
            else:
                rest = self._outside(rest, events)
        return events

    def finish(self) -> list[Said]:
        """What was held back. A last block may lack its closer."""
        events: list[Said] = []
        if self._arguments is not None:
            self._more(self._arguments.finish(), events)
        elif self._closer is None and self._block is None:
            self._content(self._opener.finish(), events)
        elif self._block is not None and not self._last(self._block, events):
            self._content(self._style.opener + self._block, events)
        if self._space:
            events.append(Content(self._space))
        return events

    def _outside(self, piece: str, events: list[Said]) -> str | None:
        """What is still to be read, once a block has begun."""
        before, after = self._opener.push(piece)
        self._content(before, events)
        if after is not None:
            self._block, self._searched = "", 0
        return after

    def _inside(self, piece: str, events: list[Said]) -> str | None:
        """What is still to be read, once the block has ended."""
        assert self._block is not None
        self._block += piece
        if (begun := self._style.begun(self._block, self._tools)) is not None:
            return self._begin(begun, events)
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

    def _begin(self, begun: Begun, events: list[Said]) -> str:
        """What follows the head of a call."""
        self._block, self._arguments = None, begun.arguments
        self._dropped = self.count > 0 and not self._parallel
        if not self._dropped:
            self.count += 1
            events.append(Call(begun.name, ""))
        self._space, self._bare = "", True
        return begun.rest

    def _written(self, arguments: Arguments, piece: str, events: list[Said]) -> str | None:
        """What is still to be read, once the arguments are over."""
        text, rest = arguments.push(piece)
        self._more(text, events)
        if rest is not None:
            self._arguments = None
            self._closer = None if self._style.closer is None else Until(self._style.closer)
        return rest

    def _more(self, text: str, events: list[Said]) -> None:
        if text and not self._dropped:
            events.append(MoreArguments(text))

    def _behind(self, closer: Until, piece: str) -> str | None:
        _, rest = closer.push(piece)
        if rest is not None:
            self._closer = None
        return rest

    def _last(self, block: str, events: list[Said]) -> bool:
        try:
            return self._read(block, events)
        except Unfinished:
            return False

    def _read(self, block: str, events: list[Said]) -> bool:
        """Whether it holds calls."""
        calls = self._style.calls(block, self._tools)
        kept = calls if self._parallel else calls[: 1 - min(self.count, 1)]
        self.count += len(kept)
        events += kept
        if calls:
            self._space, self._bare = "", True
        return bool(calls)

    def _content(self, text: str, events: list[Said]) -> None:
        text = self._space + text
        if self._bare:
            text = text.lstrip()
            self._bare = not text
        kept = text.rstrip()
        self._space = text[len(kept) :]
        if kept:
            events.append(Content(kept))
