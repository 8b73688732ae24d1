"""A whole answer, put together from the same pieces that a stream would send."""

from contextlib import aclosing
from dataclasses import dataclass, field

from plait_engine.request import TokenLogprobs
from plait_server.generation import Generation
from plait_server.sequence_text import Piece


@dataclass(slots=True)
class Choice:
    """One choice, complete."""

    index: int
    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def add(self, piece: Piece) -> None:
        self.texts.append(piece.text)
        self.token_ids += piece.token_ids
        self.offsets += piece.offsets
        self.logprobs += piece.logprobs or ()
        if piece.finish_reason is not None:
            self.finish_reason, self.stop_reason = piece.finish_reason, piece.stop_reason


async def collect(generation: Generation) -> list[Choice]:
    """All choices, by index. Raises ``EngineError``; cancelling it ends the work in the engine."""
    choices = [Choice(index) for index in range(len(generation.parts) * generation.job.n)]
    async with aclosing(generation.pieces()) as batches:
        async for pieces in batches:
            for piece in pieces:
                choices[piece.choice].add(piece)
    return choices
