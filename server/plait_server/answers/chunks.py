"""Events of one stream. The bytes that never change are made once; a token costs one small JSON string."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import orjson

from plait_server.answers.explanation import NOTHING, explanation
from plait_server.answers.head import DONE, END, Head
from plait_server.answers.options import AnswerOptions
from plait_server.generation import Generation
from plait_server.sequence_text import Piece


class AnswerChunks(ABC):
    """What streams of chats and of completions have in common."""

    kind: str
    """The ``object`` field."""
    before_text: bytes
    """Of a choice that only adds text: what stands between its index and its text, and behind the text."""
    behind_text: bytes

    def __init__(self, generation: Generation, head: Head, options: AnswerOptions) -> None:
        self._generation = generation
        self._options = options
        self._event = head.event(self.kind)
        self._opened = False
        self._with_tokens = options.logprobs or options.token_ids
        choices = range(len(generation.parts) * generation.job.n)
        self._begins = [self._event + b',"choices":[{"index":%d' % index + self.before_text for index in choices]
        self._end = None if options.continuous_usage else self._end_now()

    def pieces(self, pieces: list[Piece]) -> bytes:
        """Events for what one step brought; before the first of them, what a stream begins with."""
        if not self._opened:
            self._opened = True
            pieces = sorted(pieces, key=lambda piece: piece.choice)
            return self._opening(pieces) + b"".join(map(self._piece, pieces))
        return self._piece(pieces[0]) if len(pieces) == 1 else b"".join(map(self._piece, pieces))

    def closing(self) -> bytes:
        if not self._options.include_usage:
            return DONE
        return self._event + b',"choices":[],"usage":' + orjson.dumps(self._generation.usage()) + END + DONE

    @abstractmethod
    def _opening(self, pieces: list[Piece]) -> bytes:
        """The first event of a stream belongs to choice 0, whichever ``pieces`` are the first."""

    @abstractmethod
    def _piece(self, piece: Piece) -> bytes: ...

    def _plain(self, index: int, text: str) -> bytes:
        return self._begins[index] + orjson.dumps(text) + (self._end or self._end_now())

    def _end_now(self) -> bytes:
        return self.behind_text + b"}]" + self._usage() + END

    def _rich(self, index: int, fields: dict[str, Any], beside: Mapping[str, Any] = NOTHING) -> bytes:
        """``beside``: what belongs to the whole answer."""
        choice = orjson.dumps({"index": index, **fields})
        more = b"," + orjson.dumps(beside)[1:-1] if beside else b""
        return self._event + b',"choices":[' + choice + b"]" + more + self._usage() + END

    def _explanation(self, piece: Piece) -> Mapping[str, Any]:
        """Once, at the end of the first choice."""
        wanted = self._options.explain_cache and piece.choice == 0 and piece.finish_reason is not None
        return explanation(self._generation) if wanted else NOTHING

    def _usage(self) -> bytes:
        if not self._options.include_usage:
            return b""
        if not self._options.continuous_usage:
            return b',"usage":null'
        return b',"usage":' + orjson.dumps(self._generation.usage())
