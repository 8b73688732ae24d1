"""Rows of steps that are nobody's: their sequences own the reserved pages and slots, so nothing else is written."""

from plait_engine.request import Request, SamplingParams
from plait_engine.runner.runner import ModelRunner
from plait_engine.scheduler.step_plan import Row
from plait_engine.sequence import Sequence
from plait_engine.state.checkpoint import Checkpoint
from plait_engine.state.ledger import Units
from plait_engine.state.sequence_state import SequenceState
from plait_engine.state.spec import Position

GREEDY = SamplingParams(temperature=0)


class PaddingRows:
    def __init__(self, runner: ModelRunner, reserved: Units) -> None:
        """``reserved``: the pages and slots that padding rows own."""
        self._tables = runner.tables
        self._slots = {group.id: reserved[group.id] for group in runner.tables.groups if not group.paged}

    def row(self, tokens: int, sampling: SamplingParams = GREEDY, *, start: int = 0, emits: bool = False) -> Row:
        """``tokens`` behind the first ``start``; with ``emits`` a checkpoint is left half-way."""
        state = SequenceState(self._tables.groups)
        state.slots = self._slots
        request = Request(id="warm up", prompt=(0,) * (start + tokens), sampling=sampling)
        sequence = Sequence(request, 0, 0, state, row=self._tables.padding_row)
        middle = Checkpoint(Position(start + max(1, tokens // 2)), "", self._slots)
        return Row(sequence, Position(start), tokens, samples=True, emits=(middle,) if emits else ())
