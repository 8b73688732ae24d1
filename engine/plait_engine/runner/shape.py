"""Sizes that recorded steps come in: each step that can be recorded is padded to one of a few."""

from dataclasses import dataclass

from plait_engine.scheduler.step_plan import StepPlan

PIECES = 8
"""Sequences behind the decodes: pieces of prompts, one of padding, and one without tokens that fills tables."""
CHUNKS = 16
"""Rows of the chunk table in a step with pieces."""
BESIDE = (0, 8, 32, 128)
"""Decodes beside pieces: rows for nothing cost little there, and each number is a recording of its own."""
TOKENS = (64, 128, 256, 384, 512, 768, 1024, 1280, 1536)
"""Of pieces; below 256 the weights take longer to read than the tokens to compute."""


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


def shape_of(plan: StepPlan, multiple: int, piece_tokens: int, most: int) -> Shape | None:
    """The shape that ``plan`` is padded to; None where it runs as it is. Decodes come in multiples of ``multiple``, and
    there are at most ``most``; pieces together have at most ``piece_tokens`` tokens."""
    if plan.replayable:
        return Shape(up(ladder(plan.decodes), multiple))
    pieces = plan.rows[plan.decodes :]
    tokens = sum(row.count for row in pieces)
    chunks = sum(1 + len(row.emits) for row in pieces)
    scored = any(row.sequence.request.sampling.prompt_logprobs is not None for row in plan.rows)
    if scored or not 0 < tokens <= piece_tokens or len(pieces) > PIECES - 2 or chunks > CHUNKS - 1:
        return None
    return Shape(up(_first(BESIDE, plan.decodes, most), multiple), PIECES, _first(TOKENS, tokens, piece_tokens))


def shapes_with_pieces(multiple: int, piece_tokens: int, most: int) -> list[Shape]:
    """All that ``shape_of`` may give, the largest first."""
    tokens = sorted({_first(TOKENS, n, piece_tokens) for n in range(1, piece_tokens + 1)}, reverse=True)
    decodes = sorted({up(_first(BESIDE, n, most), multiple) for n in range(most + 1)}, reverse=True)
    return [Shape(some, PIECES, n) for n in tokens for some in decodes]


def _first(sizes: tuple[int, ...], number: int, most: int) -> int:
    """The first of ``sizes`` that holds ``number``; ``most`` where it is less, or where none does."""
    return min(most, next((size for size in sizes if size >= number), most))
