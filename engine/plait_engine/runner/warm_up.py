"""Steps on padding rows before the first request, so that nobody waits for a kernel to be compiled or a graph captured.

They have the shapes that kernels tell apart: prompts short and long, alone and side by side, with checkpoints and
without, beside decodes and without; every way to sample; and decodes of every number of rows.
"""

import time
from collections.abc import Callable, Iterator

from plait_engine.request import Request, SamplingParams
from plait_engine.runner.runner import ModelRunner
from plait_engine.runner.shape import Shape, ladder, up
from plait_engine.scheduler.scheduler import SchedulerLimits
from plait_engine.scheduler.step_plan import Row, StepPlan
from plait_engine.sequence import Sequence
from plait_engine.state.checkpoint import Checkpoint
from plait_engine.state.ledger import Units
from plait_engine.state.sequence_state import SequenceState
from plait_engine.state.spec import Position
from plait_engine.state.unit_copy import UnitCopy

Report = Callable[[str], None]

GREEDY = SamplingParams(temperature=0)
SAMPLINGS = (
    GREEDY,
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=1.0, top_k=5, top_p=0.9, min_p=0.01, logprobs=1, prompt_logprobs=1),
)
PROMPTS = ((1, 2), (1, 60), (1, 500), (1, 1024), (1, 4096), (3, 300), (8, 1024))
"""Sequences, and tokens of each."""


def warm_up(runner: ModelRunner, reserved: Units, limits: SchedulerLimits, report: Report) -> None:
    """``reserved``: the pages and slots that padding rows own; nothing else is written."""
    started = time.perf_counter()
    for rows in _steps(runner, reserved, limits):
        runner.launch(StepPlan(tuple(rows))).wait()
    _copies(runner, reserved)
    report(f"kernels: ready after {time.perf_counter() - started:.1f} s")
    started = time.perf_counter()
    multiple = runner.builder.padding
    sizes = sorted({up(ladder(rows), multiple) for rows in range(1, limits.max_seqs + 1)}, reverse=True)
    captured = sum(runner.graphs.prepare(Shape(rows), runner.builder.only_padding) for rows in sizes)
    seconds = time.perf_counter() - started
    report(f"graphs: {captured} sizes of decode steps up to {limits.max_seqs} sequences in {seconds:.1f} s")


def _steps(runner: ModelRunner, reserved: Units, limits: SchedulerLimits) -> Iterator[list[Row]]:
    padding = _Padding(runner, reserved)
    longest = limits.max_model_len - 1
    for sampling in SAMPLINGS:
        yield [padding.row(min(40, longest), sampling)]
    for sequences, tokens in PROMPTS:
        tokens = min(tokens, longest, limits.max_batch_tokens // sequences - 1)
        if tokens < 2:
            continue
        for emits in (False, True):
            yield [padding.row(tokens, GREEDY, emits=emits) for _ in range(sequences)]
        yield [padding.row(1, GREEDY), *(padding.row(tokens, GREEDY) for _ in range(sequences))]


def _copies(runner: ModelRunner, reserved: Units) -> None:
    """What restores and checkpoints launch, on the reserved units themselves."""
    for group in runner.tables.groups:
        unit = reserved[group.id][0]
        runner.copier.copy([UnitCopy(group.id, unit, unit)])
    slots = {group.id: reserved[group.id] for group in runner.tables.groups if not group.paged}
    if slots:
        runner.copier.checksum(slots)


class _Padding:
    """Rows of sequences that own the reserved units."""

    def __init__(self, runner: ModelRunner, reserved: Units) -> None:
        self._runner = runner
        self._groups = runner.tables.groups
        self._slots = {group.id: reserved[group.id] for group in self._groups if not group.paged}

    def row(self, tokens: int, sampling: SamplingParams, *, emits: bool = False) -> Row:
        state = SequenceState(self._groups)
        state.slots = self._slots
        request = Request(id="warm up", prompt=(0,) * tokens, sampling=sampling)
        sequence = Sequence(request, 0, 0, state, row=self._runner.tables.padding_row)
        middle = Checkpoint(Position(max(1, tokens // 2)), "", self._slots)
        return Row(sequence, Position(0), tokens, samples=True, emits=(middle,) if emits else ())
