"""Once on a GPU that nobody has measured: the configurations that this model's kernels run best with, kept for good.

Of each kernel and shape that a rehearsal asked for and no table holds, calls of the op that asks for it are made with
one configuration after another (``plait_kernels.tuning.search``), what takes most of the time first. Nothing of that
ends a start: what goes wrong leaves the default. What is about to be tried is kept as its default before, so that a
process that dies of it does not die of it at every start.
"""

import logging
import time
from collections.abc import Callable, Iterable

import torch

from plait_engine.runner.runner import ModelRunner
from plait_engine.runner.tuning_cases import Case, cases_of
from plait_engine.scheduler.scheduler import SchedulerLimits
from plait_engine.state.ledger import Ledger
from plait_kernels.tuning import Ask, Config, asking, device_slug, key_name, tunables, untuned
from plait_kernels.tuning.search import NEVER, Bench, Finding, search
from plait_kernels.tuning.shelf import Shelf

log = logging.getLogger("plait.tuning")
Report = Callable[[str], None]

SECONDS = 60.0
"""A start tries configurations for so long at most. What is left, the next one tries."""
COMPILING_SECONDS = 240.0
"""And has them compiled for so long."""


def tune_on_gpu(
    runner: ModelRunner, ledger: Ledger, limits: SchedulerLimits, asked: Iterable[Ask], report: Report
) -> int:
    """``tune`` with the GPU that the engine is on, and the time that a start may take for it; elsewhere nothing."""
    if not runner.kernels.graphs:
        return 0
    from plait_kernels.cuda.bench import GpuBench

    bench = GpuBench(SECONDS, COMPILING_SECONDS)
    try:
        return tune(runner, ledger, limits, asked, report, bench)
    finally:
        bench.close()


def tune(
    runner: ModelRunner, ledger: Ledger, limits: SchedulerLimits, asked: Iterable[Ask], report: Report, bench: Bench
) -> int:
    """How many of the kernels and shapes ``asked`` for may have another configuration now than before.

    Weights must be there, and nothing running. ``bench``: with as much time as there is for it.
    """
    shelf, asked = Shelf(device_slug(runner.device)), tuple(asked)
    wanted = [ask for ask in asked if untuned(shelf.slug, *ask)]
    if not wanted:
        if known := shelf.count(asked):
            report(f"tuning: {known} configurations from {shelf.path}")
        return 0
    report(f"tuning: {shelf.slug} was not measured for {len(wanted)} kernels and shapes of this model; once, now")
    try:
        with torch.inference_mode():
            return _tune(cases_of(runner, ledger, limits, set(wanted)), wanted, ledger, shelf, report, bench)
    except Exception as error:
        log.warning("tuning has failed: what was not tried keeps its default", exc_info=True)
        report(f"tuning: ended by {type(error).__name__}: {str(error)[:200]}")
        return len(wanted)


def _tune(cases: list[Case], wanted: Iterable[Ask], ledger: Ledger, shelf: Shelf, report: Report, bench: Bench) -> int:
    started = time.perf_counter()
    for ask in set(wanted) - {case.ask for case in cases}:
        shelf.put(ask, _default(ask))  # only small steps of mixed kinds ask for it
    left, changed, done = _dearest_first(cases, bench), 0, 0
    while left and not bench.over():
        case, done = left.pop(0), done + 1
        finding = _find(case, ledger, shelf, bench)
        if finding.config != _default(case.ask):
            changed += 1
            left = _new_cases(case, shelf, left) + left
        seconds = time.perf_counter() - started
        report(f"tuning {done} of {done + len(left)}: {_said(case.ask, finding)}; {seconds:.0f} s")
    more = f"; {len(left)} are left for the next start" if left else ""
    report(
        f"tuning: {changed} of {done} are faster now, after {time.perf_counter() - started:.0f} s{more}; {shelf.path}"
    )
    return changed


def _dearest_first(cases: list[Case], bench: Bench) -> list[Case]:
    """By the time that steps spend in the op; where one op asks for several, in its order."""
    seconds: dict[int, float] = {}
    for case in cases:
        call = id(case.calls[0])
        if call not in seconds:
            seconds[call] = case.times * _seconds(case, bench)
    return sorted(cases, key=lambda case: -seconds[id(case.calls[0])])


def _seconds(case: Case, bench: Bench) -> float:
    """Of one call as it is; 0 where it cannot be timed, which its own turn will tell."""
    try:
        return bench.seconds_each(case.calls, NEVER)
    except Exception:
        return 0.0


def _new_cases(case: Case, shelf: Shelf, left: Iterable[Case]) -> list[Case]:
    """What its calls ask for only now, with what was found: another form of a kernel has other configurations."""
    known = {other.ask for other in left}
    with asking() as asks:
        case.calls[0]()
    fresh = [ask for ask in asks if ask not in known and untuned(shelf.slug, *ask)]
    return [Case(ask, case.step, case.calls, case.times) for ask in fresh]


def _find(case: Case, ledger: Ledger, shelf: Shelf, bench: Bench) -> Finding:
    default = _default(case.ask)
    shelf.put(case.ask, default)
    try:
        finding = search(tunables()[case.ask[0]], case.calls, ledger.arena.bytes, bench)
    except Exception:
        log.warning("%s keeps its default", case.ask, exc_info=True)
        return Finding(default, 0.0, 0.0, 0, 0)
    if finding.config != default:
        shelf.put(case.ask, finding.config)
    return finding


def _default(ask: Ask) -> Config:
    return tunables()[ask[0]].default


def _said(ask: Ask, finding: Finding) -> str:
    found, default = finding.seconds * 1e6, finding.default_seconds * 1e6
    failed = f", {finding.failed} failed" if finding.failed else ""
    return f"{ask[0]} {key_name(ask[1])} {found:.1f} us, by default {default:.1f} ({finding.tried} tried{failed})"
