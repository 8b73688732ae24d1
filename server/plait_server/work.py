"""A generation under way: deltas of the engine go in, pieces of answers come out, one call for each step."""

from typing import Protocol

from plait_engine.client import EngineClient, EngineError
from plait_engine.request import Delta, FinishReason
from plait_server.auth.limits import Spend, unlimited
from plait_server.metrics import Following
from plait_server.part import Part
from plait_server.sequence_text import Piece

GIVEN_UP = frozenset({FinishReason.ERROR, FinishReason.ABORT})


class Listener(Protocol):
    """Who wants to know. Called in the event loop, and must return soon: all other streams wait meanwhile."""

    def pieces(self, pieces: list[Piece]) -> None:
        """What one step brought."""

    def ended(self, error: Exception | None) -> None:
        """Once, at the end; without an error everything is there."""


class Work:
    """The engine's ``Follower`` for one or more prompts; the first failure ends them all.

    A call instead of a queue: a token costs no task that has to be woken before its text is ready to be sent.
    """

    __slots__ = ("_engine", "_follow", "_going", "_listener", "_over", "_parts", "_unfinished", "_used")

    def __init__(
        self, engine: EngineClient, parts: list[Part], listener: Listener, follow: Following, used: Spend
    ) -> None:
        self._engine = engine
        self._parts = {part.request.id: part for part in parts}
        self._listener = listener
        self._follow = follow
        self._used = used
        self._going = len(parts)
        """Requests that the engine has not ended."""
        self._unfinished = sum(len(part.choices) for part in parts)
        """Choices that have no finish reason yet."""
        self._over = False

    def start(self) -> None:
        for part in self._parts.values():
            self._engine.follow(part.request, self)

    def close(self) -> None:
        """Ends in the engine what is not complete, and listens no longer."""
        self._over = True
        for part in self._parts.values():
            if not all(choice.finished for choice in part.choices):
                self._engine.abort(part.request.id)

    def take(self, deltas: list[Delta]) -> None:
        if self._over:
            return
        try:
            if pieces := self._advance(deltas):
                self._follow.tokens(pieces)
                if self._used is not unlimited:
                    self._used(sum(len(piece.token_ids) for piece in pieces))
                self._listener.pieces(pieces)
        except Exception as error:
            self._end(error)
        else:
            if not self._unfinished:
                self._follow.complete()
                self._end(None)

    def end(self, error: EngineError | None) -> None:
        self._going -= 1
        if not self._over and (error is not None or not self._going):
            self._end(error or EngineError("the engine ended this request before it was complete"))

    def _end(self, error: Exception | None) -> None:
        self._over = True
        self._listener.ended(error)

    def _advance(self, deltas: list[Delta]) -> list[Piece]:
        pieces = []
        for delta in deltas:
            part = self._parts[delta.request_id]
            choice = part.choices[delta.index]
            if not choice.begun:
                choice.begun = True
                part.begin(delta)
            if choice.finished:
                continue  # was on its way when a stop string ended the choice
            if delta.finish_reason is not None and delta.finish_reason in GIVEN_UP:
                raise EngineError(delta.error or "the engine gave up on this request")
            piece = choice.advance(delta)
            if piece.finish_reason is not None:
                self._unfinished -= 1
                if delta.finish_reason is None:
                    self._engine.abort(part.request.id, delta.index)
            pieces.append(piece)
        return pieces
