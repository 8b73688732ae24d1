"""The engine's own figures on the metrics endpoint, under the names that the engine gives them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from plait_engine.client import EngineStats


class Known(NamedTuple):
    """What is shown of a metric even before the engine has counted anything under its name."""

    labels: tuple[str, ...]
    help: str


GAUGES = {
    "plait_requests": Known(("state",), "Sequences in the engine"),
    "plait_arena_bytes": Known(("use",), "The arena, by what its bytes are used for"),
    "plait_pages": Known(("group", "use"), "Pages of the paged groups"),
    "plait_slots": Known(("group", "use"), "Slot rows of the fixed-size groups"),
    "plait_cache_utilization_ratio": Known((), "Bytes of the arena in use over all its bytes"),
    "plait_checkpoints": Known(("tier",), "Checkpoints held"),
    "plait_pins": Known((), "Pinned prefixes"),
    "plait_pinned_bytes": Known((), "Bytes of the arena that pins keep from being evicted"),
    "plait_pin_budget_bytes": Known((), "Bytes of the arena that pins may keep"),
}
COUNTERS = {
    "plait_preemptions_total": Known(("outcome",), "Sequences that gave up their memory and went back to the queue"),
    "plait_no_progress_total": Known((), "Requests ended because the engine could not go on with them"),
    "plait_prefix_lookup_tokens_total": Known((), "Prompt tokens looked up in the prefix tree"),
    "plait_prefix_hit_tokens_total": Known((), "Of those, tokens whose prefix is known"),
    "plait_prefix_effective_hit_tokens_total": Known((), "Of those, tokens skipped by restoring a resume point"),
    "plait_prefix_lost_tokens_total": Known(("reason",), "Tokens hit but not skipped"),
    "plait_prefix_unused_total": Known(("reason",), "Prompts of which nothing was known"),
    "plait_state_restores_total": Known(("state", "tier"), "States brought back for a resume point"),
    "plait_state_restore_failures_total": Known(("state", "reason"), "States that failed a check of the restore"),
    "plait_hit_audits_total": Known(("result",), "Hits computed again from nothing, and compared"),
    "plait_checkpoint_skipped_total": Known(("reason",), "Checkpoints that were wanted and not taken"),
    "plait_evictions_total": Known(("kind", "reason"), "What the prefix tree gave up"),
    "plait_pin_events_total": Known(("event",), "What became of pins"),
}
HISTOGRAMS = {
    "plait_queue_seconds": Known((), "From arrival in the engine to the end of the first step"),
    "plait_step_seconds": Known(("phase",), "One step of the engine, by phase"),
    "plait_batch_tokens": Known((), "Tokens in one step"),
}


class EngineCollector(Collector):
    """Shows the latest ``EngineStats``; without any, names only, rather than old figures."""

    def __init__(self) -> None:
        self.stats: EngineStats | None = None
        self.taken: frozenset[str] = frozenset()
        """Names of the front end's own metrics: a name may appear once in an exposition."""

    def describe(self) -> list[Metric]:
        """Nothing: the names are the engine's to choose, and registering must not ask for them."""
        return []

    def collect(self) -> Iterator[Metric]:
        stats = self.stats or EngineStats()
        requests = {"plait_requests": {"state=running": stats.running, "state=waiting": stats.waiting}}
        gauges = stats.gauges | (requests if self.stats else {})
        for name in self._names(GAUGES, gauges):
            yield gauge(name, known(GAUGES, name, gauges), gauges.get(name, {}))
        for name in self._names(COUNTERS, stats.counters):
            yield counter(name, known(COUNTERS, name, stats.counters), stats.counters.get(name, {}))
        for name in self._names(HISTOGRAMS, stats.histograms):
            rows = stats.histograms.get(name, {})
            yield histogram(name, known(HISTOGRAMS, name, stats.histograms), rows, stats.bounds.get(name, ()))

    def _names(self, table: Iterable[str], given: Iterable[str]) -> list[str]:
        return [name for name in dict.fromkeys((*table, *given)) if name.removesuffix("_total") not in self.taken]


def known(table: Mapping[str, Known], name: str, given: Mapping[str, Mapping[str, object]]) -> Known:
    if name in table:
        return table[name]
    return Known(tuple(labels_of(next(iter(given[name]), ""))), name)


def labels_of(written: str) -> dict[str, str]:
    """``key=value,key=value`` as the engine writes labels; the empty string is no labels."""
    pairs = (pair.partition("=") for pair in written.split(",")) if written else ()
    return {key: value for key, _, value in pairs}


def values_of(written: str, labels: Sequence[str]) -> list[str]:
    given = labels_of(written)
    return [given.get(label, "") for label in labels]


def gauge(name: str, about: Known, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(name, about.help, labels=about.labels)
    for written, value in values.items():
        family.add_metric(values_of(written, about.labels), value)
    return family


def counter(name: str, about: Known, values: Mapping[str, float]) -> Metric:
    family = CounterMetricFamily(name, about.help, labels=about.labels)
    for written, value in values.items():
        family.add_metric(values_of(written, about.labels), value)
    return family


def histogram(name: str, about: Known, rows: Mapping[str, Sequence[float]], bounds: Sequence[float]) -> Metric:
    """Each row: cumulative counts, the last of them for +Inf, then the sum."""
    family = HistogramMetricFamily(name, about.help, labels=about.labels)
    edges = [*map(floatToGoString, bounds), "+Inf"]
    for written, (*counts, total) in rows.items():
        family.add_metric(values_of(written, about.labels), list(zip(edges, counts, strict=True)), total)
    return family
