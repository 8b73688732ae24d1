"""Before the first request: kernels are compiled, libraries set up, graphs captured, all on padding rows.

Nobody waits for any of that while serving. ``compiling`` compiles all that steps may launch, many kernels at a time;
``warm_up`` runs a few steps for what else is made when it is first used, and captures steps of nearly every size.
"""

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from plait_engine.runner.padding_rows import GREEDY, PaddingRows
from plait_engine.runner.rehearsal import SAMPLINGS, decode_sizes, rehearse
from plait_engine.runner.runner import ModelRunner
from plait_engine.runner.shape import Shape
from plait_engine.scheduler.scheduler import SchedulerLimits
from plait_engine.scheduler.step_plan import Row, StepPlan
from plait_engine.state.ledger import Units
from plait_engine.state.unit_copy import UnitCopy
from plait_kernels.tuning import Ask, asking

Report = Callable[[str], None]

COMMON_DECODES = 32
"""Steps with pieces beside more decodes than these are captured when they are first wanted, which then takes the host
no longer than running them would."""
PROMPTS = ((1, 2), (1, 60), (1, 500), (1, 1024), (1, 4096), (3, 300), (8, 1024))
"""Sequences, and tokens of each."""


def warm_up(runner: ModelRunner, reserved: Units, limits: SchedulerLimits, report: Report) -> None:
    """``reserved``: the pages and slots that padding rows own; nothing else is written."""
    padding = PaddingRows(runner, reserved)
    started = time.perf_counter()
    for rows in _steps(padding, limits):
        runner.launch(StepPlan(tuple(rows))).wait()
    copies(runner, reserved)
    report(f"steps: ran all kinds in {time.perf_counter() - started:.1f} s")
    started = time.perf_counter()
    sizes = sorted(decode_sizes(limits, runner.builder.padding), reverse=True)
    beside = (shape for shape in runner.graphs.shapes_with_pieces() if shape.decodes <= COMMON_DECODES)
    shapes = [*(Shape(rows) for rows in sizes), *beside]
    captured = sum(runner.graphs.prepare(shape, runner.builder.only_padding) for shape in shapes)
    seconds = time.perf_counter() - started
    most = f"{limits.max_seqs} sequences, {runner.graphs.piece_tokens} tokens of prompts"
    report(f"graphs: {captured} sizes of steps up to {most} in {seconds:.1f} s")


@contextmanager
def compiling(
    runner: ModelRunner, reserved: Units, limits: SchedulerLimits, report: Report
) -> Iterator[Collection[Ask]]:
    """What steps may launch is compiled while something else goes on, and is there at the end. Weights need not be.

    Gives the configurations that they ask for. Without Triton there is nothing to do.
    """
    if not runner.kernels.graphs:
        yield ()
        return
    from plait_kernels.cuda.compile_ahead import CompileAhead

    started = time.perf_counter()
    with CompileAhead() as ahead:
        with ahead.instead_of_launching(), asking() as asked:
            steps = rehearse(runner, PaddingRows(runner, reserved), limits)
            copies(runner, reserved)
        rehearsed = time.perf_counter()
        yield asked
        meanwhile = time.perf_counter()
    waited = time.perf_counter() - meanwhile
    report(
        f"kernels: {ahead.kernels} compiled or loaded in {ahead.seconds:.1f} s of threads, asked for by {steps} steps "
        f"in {rehearsed - started:.1f} s; waited {waited:.1f} s more for them"
    )


def tell_of_late_kernels(runner: ModelRunner, report: Report) -> None:
    """From now on, ``report`` is told of each kernel that is compiled nevertheless."""
    if runner.kernels.graphs:
        from plait_kernels.cuda.compile_ahead import tell_of_compiles

        tell_of_compiles(lambda kernel: report(f"somebody waited for a kernel to be compiled: {kernel}"))


def copies(runner: ModelRunner, reserved: Units) -> None:
    """What restores and checkpoints launch, on the reserved units themselves."""
    for group in runner.tables.groups:
        unit = reserved[group.id][0]
        runner.copier.copy([UnitCopy(group.id, unit, unit)])
    slots = {group.id: reserved[group.id] for group in runner.tables.groups if not group.paged}
    if slots:
        runner.copier.checksum(slots)


def _steps(padding: PaddingRows, limits: SchedulerLimits) -> Iterator[list[Row]]:
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
