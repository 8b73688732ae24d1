"""Time and ceilings of a GPU."""

import statistics
from collections.abc import Callable, Sequence

import torch


def seconds_each(calls: Sequence[Callable[[], object]], least_seconds: float = 0.02, repeats: int = 5) -> float:
    """Seconds of one call: all of them, each with buffers of its own, in a graph that is replayed; median of repeats.

    A graph hides what the host takes to launch, as in serving. What cannot be captured is timed as it is launched.
    """
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            for call in calls:
                call()
        run: Callable[[], object] = graph.replay
    except RuntimeError:
        torch.cuda.synchronize()

        def run() -> None:
            for call in calls:
                call()

    once = _elapsed(run, 1)
    times = max(1, int(least_seconds / repeats / max(once, 1e-6)))
    return statistics.median(_elapsed(run, times) for _ in range(repeats)) / len(calls)


def _elapsed(run: Callable[[], object], times: int) -> float:
    """Seconds of one run among ``times``."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(times):
        run()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1000 / times


def copy_bandwidth(n_bytes: int = 4 << 30) -> float:
    """Bytes read and written each second by a large copy."""
    source = torch.empty(n_bytes, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    return 2 * n_bytes / seconds_each([lambda: target.copy_(source)])


def product_rate(n: int = 8192) -> float:
    """bf16 floating-point operations each second of a large matrix product on random values."""
    a, b = (torch.randn(n, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    return 2 * n**3 / seconds_each([lambda: a @ b])
