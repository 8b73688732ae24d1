"""The engine's own figures, as plain numbers. Nothing in here may ever raise into a step."""

import bisect
from collections import defaultdict
from collections.abc import Callable
from functools import wraps
from typing import Any

STEP_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
QUEUE_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0)
TOKEN_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
_BUCKETS: dict[str, tuple[float, ...]] = {
    "plait_step_seconds": STEP_BUCKETS,
    "plait_queue_seconds": QUEUE_BUCKETS,
    "plait_batch_tokens": TOKEN_BUCKETS,
}


def _harmless(method: Callable[..., None]) -> Callable[..., None]:
    """Metrics must not stop the engine: whatever goes wrong in one is dropped."""

    @wraps(method)
    def safe(*args: Any, **kwargs: Any) -> None:
        try:
            method(*args, **kwargs)
        except Exception:
            return

    return safe


class Stats:
    """Counters only grow; gauges are set; histograms keep counts per bucket. Labels are written ``key=value,...``."""

    def __init__(self) -> None:
        self.counters: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        self.gauges: dict[str, dict[str, float]] = defaultdict(dict)
        self._histograms: dict[str, dict[str, list[float]]] = defaultdict(dict)

    @_harmless
    def count(self, name: str, amount: float = 1, labels: str = "") -> None:
        self.counters[name][labels] += amount

    @_harmless
    def set(self, name: str, value: float, labels: str = "") -> None:
        self.gauges[name][labels] = value

    @_harmless
    def observe(self, name: str, value: float, labels: str = "") -> None:
        bounds = _BUCKETS[name]
        row = self._histograms[name].setdefault(labels, [0.0] * (len(bounds) + 2))
        row[bisect.bisect_left(bounds, value)] += 1
        row[-1] += value

    def histograms(self) -> dict[str, dict[str, list[float]]]:
        """Cumulative bucket counts (the last is +Inf), then the sum, as ``EngineStats`` wants them."""
        result: dict[str, dict[str, list[float]]] = {}
        for name, by_label in self._histograms.items():
            for labels, row in by_label.items():
                total, cumulative = 0.0, []
                for count in row[:-1]:
                    total += count
                    cumulative.append(total)
                result.setdefault(name, {})[labels] = [*cumulative, row[-1]]
        return result

    def all_bounds(self) -> dict[str, list[float]]:
        """Upper bounds of every histogram's buckets, without +Inf."""
        return {name: list(_BUCKETS[name]) for name in self._histograms}
