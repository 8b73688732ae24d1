"""The engine's own figures on the metrics endpoint, under the names that the engine gives them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from plait_engine.client import EngineStats

Value = TypeVar("Value")


class EngineCollector(Collector):
    """Shows the latest ``EngineStats``; shows nothing while there are none, rather than old figures."""

    def __init__(self) -> None:
        self.stats: EngineStats | None = None
        self.taken: frozenset[str] = frozenset()
        """Names of the front end's own metrics: a name may appear once in an exposition."""

    def describe(self) -> list[Metric]:
        """Nothing: the names are the engine's to choose, and registering must not ask for them."""
        return []

    def collect(self) -> Iterator[Metric]:
        stats = self.stats
        if stats is None:
            return
        requests = GaugeMetricFamily("plait_requests", "Requests in the engine", labels=["state"])
        requests.add_metric(["running"], stats.running)
        requests.add_metric(["waiting"], stats.waiting)
        yield requests
        for name, values in self._free(stats.gauges):
            yield gauge(name, values)
        for name, values in self._free(stats.counters):
            yield counter(name, values)
        for name, rows in self._free(stats.histograms):
            yield histogram(name, rows, stats.bounds.get(name, ()))

    def _free(self, series: Mapping[str, Value]) -> Iterator[tuple[str, Value]]:
        for name, values in series.items():
            bare = name.removesuffix("_total")
            if bare not in self.taken and bare != "plait_requests":
                yield name, values


def labels_of(written: str) -> dict[str, str]:
    """``key=value,key=value`` as the engine writes labels; the empty string is no labels."""
    return dict(pair.split("=", 1) for pair in written.split(",")) if written else {}


def names_in(values: Mapping[str, object]) -> list[str]:
    return list(labels_of(next(iter(values), "")))


def gauge(name: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(name, name, labels=names_in(values))
    for written, value in values.items():
        family.add_metric(list(labels_of(written).values()), value)
    return family


def counter(name: str, values: Mapping[str, float]) -> Metric:
    family = CounterMetricFamily(name, name, labels=names_in(values))
    for written, value in values.items():
        family.add_metric(list(labels_of(written).values()), value)
    return family


def histogram(name: str, values: Mapping[str, Sequence[float]], bounds: Sequence[float]) -> Metric:
    """Each row: cumulative counts, the last of them for +Inf, then the sum."""
    family = HistogramMetricFamily(name, name, labels=names_in(values))
    edges = [*map(floatToGoString, bounds), "+Inf"]
    for written, (*counts, total) in values.items():
        family.add_metric(list(labels_of(written).values()), list(zip(edges, counts, strict=True)), total)
    return family
