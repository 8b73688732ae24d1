"""Metrics that change with every token. prometheus_client's own take a lock and about a microsecond each time."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class TokenCounter(Collector):
    """For one thread: the event loop's."""

    def __init__(self, name: str, about: str, registry: CollectorRegistry) -> None:
        self._name = name
        self._about = about
        self._value = 0
        registry.register(self)

    def inc(self, amount: int) -> None:
        self._value += amount

    def collect(self) -> Iterator[Metric]:
        yield CounterMetricFamily(self._name, self._about, value=self._value)


class TokenHistogram(Collector):
    """For one thread: the event loop's."""

    def __init__(self, name: str, about: str, bounds: Sequence[float], registry: CollectorRegistry) -> None:
        self._name = name
        self._about = about
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        registry.register(self)

    def observe(self, value: float) -> None:
        # A bucket holds values up to and including its bound.
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def collect(self) -> Iterator[Metric]:
        edges = [*map(floatToGoString, self._bounds), "+Inf"]
        buckets = list(zip(edges, accumulate(self._counts), strict=True))
        yield HistogramMetricFamily(self._name, self._about, buckets=buckets, sum_value=self._sum)
