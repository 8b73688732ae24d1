"""What one step computes."""

from dataclasses import dataclass

from plait_engine.sequence import Sequence
from plait_engine.state.spec import Position


@dataclass(frozen=True)
class Row:
    """Tokens ``[start, start + count)`` of one sequence. ``samples``: the token behind them is picked by this step."""

    sequence: Sequence
    start: Position
    count: int
    samples: bool

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
        """How many rows, all at the front, are of one token."""
        return sum(row.count == 1 for row in self.rows)

    def __bool__(self) -> bool:
        return bool(self.rows)
