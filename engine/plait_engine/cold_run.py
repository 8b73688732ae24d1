"""Tokens computed from position 0 without reuse, in an engine that is idle: what a hit is measured against.

It has a queue, a row and memory of its own, so nothing of it is found, kept or counted, and it can be given up after
any of its steps.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from plait_engine.request import Request, SamplingParams
from plait_engine.runner.runner import ModelRunner
from plait_engine.scheduler.scheduler import Scheduler, SchedulerLimits
from plait_engine.scheduler.step_plan import Row
from plait_engine.sequence import Sequence
from plait_engine.state.ledger import Units
from plait_engine.state.prefix_cache import PrefixCache
from plait_engine.state.sequence_state import SequenceState


class ColdRun:
    """``chunk`` tokens a step. ``cache`` is the live one: what is cached may have to go for the run's memory."""

    def __init__(self, runner: ModelRunner, cache: PrefixCache, tokens: tuple[int, ...], chunk: int) -> None:
        self._runner = runner
        self._logits: Tensor | None = None
        request = Request(id="cold run", prompt=tokens, sampling=SamplingParams(max_tokens=1, temperature=0.0))
        self._sequence = Sequence(request, 0, 0, SequenceState(cache.ledger.groups))
        self._scheduler = Scheduler(SchedulerLimits(chunk, 1, len(tokens) + 1), PrefixCache.disabled(cache.ledger))
        self._scheduler.add(self._sequence)
        cache.make_room(self._sequence.state.admission_demand(len(tokens), chunk))

    def steps(self) -> Iterator[None]:
        """Compute, one step each time; ends when ``logits`` is there, or when there is no memory for it."""
        while self._logits is None and (plan := self._scheduler.schedule()):
            with self._listening():
                self._runner.launch(plan).wait()
            for row in plan.rows:
                row.sequence.in_flight -= 1
                row.sequence.pending -= row.samples
                row.sequence.state.advance(row.start, row.count)
            yield

    @property
    def logits(self) -> Tensor | None:
        """``[vocab]`` fp32, behind the last of the tokens; None when the run did not come so far."""
        return self._logits

    def owned(self) -> Units:
        return self._sequence.state.owned()

    def close(self) -> None:
        """Give everything back."""
        self._scheduler.release(self._sequence)

    @contextmanager
    def _listening(self) -> Iterator[None]:
        others, self._runner.tap = self._runner.tap, self._hear
        try:
            yield
        finally:
            self._runner.tap = others

    def _hear(self, rows: tuple[Row, ...], logits: Tensor) -> None:
        assert len(rows) == 1
        self._logits = logits[0].float().clone()
