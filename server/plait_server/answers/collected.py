"""A whole answer, put together from the same pieces that a stream would send."""

import asyncio
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


class Collection:
    """A generation's ``Listener`` that waits for all of it."""

    def __init__(self, choices: int) -> None:
        self.choices = [Choice(index) for index in range(choices)]
        self.complete: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def pieces(self, pieces: list[Piece]) -> None:
        for piece in pieces:
            self.choices[piece.choice].add(piece)

    def ended(self, error: Exception | None) -> None:
        if self.complete.done():
            return  # nobody waits any longer
        if error is None:
            self.complete.set_result(None)
        else:
            self.complete.set_exception(error)


async def collect(generation: Generation) -> list[Choice]:
    """All choices, by index. Raises ``EngineError``; cancelling it ends the work in the engine."""
    collection = Collection(len(generation.parts) * generation.job.n)
    with generation.working(collection):
        await collection.complete
    return collection.choices
