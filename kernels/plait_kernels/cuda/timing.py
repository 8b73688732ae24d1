"""How long calls take on a GPU."""

import statistics
from collections.abc import Callable, Sequence

import torch

from plait_kernels.cuda.graph import capture
from plait_kernels.recording import NotReplayableError

NEVER = float("inf")


def seconds_each(
    calls: Sequence[Callable[[], object]],
    least_seconds: float = 0.02,
    repeats: int = 5,
    *,
    worth_seconds: float = NEVER,
) -> float:
    """Seconds of one call: all of them, each with buffers of its own, in a graph that is replayed; median of repeats.

    A graph hides what the host takes to launch, as in serving. What cannot be captured is timed as it is launched.
    Once it is plain that a call takes longer than ``worth_seconds``, how much longer is not looked into.
    """

    def run_all() -> None:
        for call in calls:
            call()

    try:
        run = capture(run_all).run
    except NotReplayableError:
        run = run_all
    once = elapsed(run, 1)
    if once > worth_seconds * len(calls):
        once = min(once, elapsed(run, 1))
        if once > worth_seconds * len(calls):
            return once / len(calls)
    times = max(1, int(least_seconds / repeats / max(once, 1e-6)))
    return statistics.median(elapsed(run, times) for _ in range(repeats)) / len(calls)


def elapsed(run: Callable[[], object], times: int) -> float:
    """Seconds of one run among ``times``."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    for _ in range(times):
        run()
    end.record()
    torch.cuda.synchronize()
    milliseconds: float = begin.elapsed_time(end)
    return milliseconds / 1000 / times
