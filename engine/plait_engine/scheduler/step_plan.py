"""What one step computes."""

from dataclasses import dataclass

from plait_engine.sequence import Sequence
from plait_engine.state.checkpoint import Checkpoint
from plait_engine.state.restore import Restore
from plait_engine.state.spec import Position


@dataclass(frozen=True)
class Row:
    """Tokens ``[start, start + count)`` of one sequence. ``samples``: the token behind them is picked by this step.

    ``restore`` is brought to the sequence's state before anything else; ``emits`` are written at their positions, which
    lie in ``(start, start + count]``.
    """

    sequence: Sequence
    start: Position
    count: int
    samples: bool
    restore: Restore | None = None
    emits: tuple[Checkpoint, ...] = ()

    @property
    def single(self) -> bool:
        """Whether it is one token that leaves nothing but its sequence's own state: a decode, for kernels."""
        return self.count == 1 and not self.emits

    @property
    def end(self) -> Position:
        return Position(self.start + self.count)


@dataclass(frozen=True)
class StepPlan:
    """One forward over a flat batch: single-token rows first, each sequence at most once."""

    rows: tuple[Row, ...]

    @property
    def tokens(self) -> int:
        return sum(row.count for row in self.rows)

    @property
    def decodes(self) -> int:
        """How many rows, all at the front, are single."""
        return sum(row.single for row in self.rows)

    @property
    def replayable(self) -> bool:
        """Whether it is nothing but decodes, so that it has the same course as every other step of so many rows."""
        return bool(self.rows) and all(
            row.single and row.samples and row.sequence.request.sampling.prompt_logprobs is None for row in self.rows
        )

    def __bool__(self) -> bool:
        return bool(self.rows)
