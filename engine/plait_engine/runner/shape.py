"""Sizes that recorded steps come in: each step that can be recorded is padded to one of a few."""

from dataclasses import dataclass

from plait_engine.scheduler.step_plan import StepPlan

PIECES = 8
"""Sequences behind the decodes: pieces of prompts, one of padding, and one without tokens that fills tables."""
CHUNKS = 16
"""Rows of the chunk table in a step with pieces."""


@dataclass(frozen=True)
class Shape:
    """``decodes`` rows of one token each, then ``pieces`` sequences that have ``tokens`` tokens together."""

    decodes: int
    pieces: int = 0
    tokens: int = 0

    @property
    def rows(self) -> int:
        return self.decodes + self.pieces

    @property
    def all_tokens(self) -> int:
        return self.decodes + self.tokens


def ladder(rows: int) -> int:
    """The number of rows that a decode of ``rows`` is padded to: few enough sizes, and little work for nothing."""
    step = 1 if rows <= 8 else 4 if rows <= 32 else 8
    return up(rows, step)


def up(number: int, multiple: int) -> int:
    """The next multiple."""
    return -(-number // multiple) * multiple


def shape_of(plan: StepPlan, multiple: int, piece_tokens: int) -> Shape | None:
    """The shape that ``plan`` is padded to; None where it runs as it is. Decodes come in multiples of ``multiple``;
    pieces together have at most ``piece_tokens`` tokens."""
    if plan.replayable:
        return Shape(up(ladder(plan.decodes), multiple))
    pieces = plan.rows[plan.decodes :]
    tokens = sum(row.count for row in pieces)
    chunks = sum(1 + len(row.emits) for row in pieces)
    scored = any(row.sequence.request.sampling.prompt_logprobs is not None for row in plan.rows)
    if scored or not 0 < tokens <= piece_tokens or len(pieces) > PIECES - 2 or chunks > CHUNKS - 1:
        return None
    return Shape(up(_coarse(plan.decodes), multiple), PIECES, _tokens(tokens))


def _coarse(decodes: int) -> int:
    """Beside pieces of prompts a few decodes for nothing cost little, and each number is a recording of its own."""
    return 0 if decodes == 0 else max(4, 1 << (decodes - 1).bit_length())


def _tokens(tokens: int) -> int:
    step = 64 if tokens <= 256 else 128 if tokens <= 1024 else 256
    return up(tokens, step)
