"""What Prometheus is told about requests. Nothing here may raise into a request, or hold one up."""

import asyncio
import functools
import logging
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from plait_engine.client import EngineStats, QueueFull, RequestRefused
from plait_server.engine_metrics import EngineCollector
from plait_server.token_metrics import TokenCounter, TokenHistogram

log = logging.getLogger(__name__)

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
TIME_TO_FIRST_TOKEN = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0)
INTER_TOKEN = (0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.0)
REQUEST = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0)

Self = TypeVar("Self")
P = ParamSpec("P")


def guarded(method: Callable[Concatenate[Self, P], None]) -> Callable[Concatenate[Self, P], None]:
    """A metrics error is logged once per method, and the request goes on."""
    failed = False

    @functools.wraps(method)
    def call(self: Self, *args: P.args, **kwargs: P.kwargs) -> None:
        nonlocal failed
        try:
            method(self, *args, **kwargs)
        except Exception:
            if not failed:
                failed = True
                log.exception("metrics: %s failed; requests are not affected", method.__qualname__)

    return call  # type: ignore[return-value]  # wraps() names the first argument, which nobody passes by name


class OfChoice(Protocol):
    """The part of a piece that metrics read."""

    @property
    def choice(self) -> int: ...

    @property
    def token_ids(self) -> Sequence[int]: ...


class Metrics:
    """One per application, with its own registry: tests and embedders may have several in one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.why_cancelled: Callable[[], str] = lambda: "client_gone"
        """Of the current task, while it ends: the server cancels requests as a vanished client does."""
        self.engine = EngineCollector()
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each one, that nobody asks for
        registry = self.registry
        self.prompt_tokens = Counter("plait_prompt_tokens", "Tokens of accepted prompts", registry=registry)
        self.generated_tokens = TokenCounter("plait_generated_tokens", "Tokens generated", registry)
        self.first_token = Histogram(
            "plait_time_to_first_token_seconds",
            "From the request's arrival to its first token",
            buckets=TIME_TO_FIRST_TOKEN,
            registry=registry,
        )
        self.inter_token = TokenHistogram(
            "plait_inter_token_seconds", "Between tokens of one sequence", INTER_TOKEN, registry
        )
        self.request_seconds = Histogram(
            "plait_request_seconds",
            "From arrival to the last token, complete requests",
            buckets=REQUEST,
            registry=registry,
        )
        self.refused_total = Counter("plait_refused", "Requests refused before any work", ["reason"], registry=registry)
        self.aborted_total = Counter(
            "plait_aborted", "Requests ended before they were complete", ["reason"], registry=registry
        )
        self.engine_up = Gauge("plait_engine_up", "1 while the engine lives, as /health says", registry=registry)
        self.ready = Gauge("plait_ready", "1 while /ready says yes", registry=registry)
        self.queue_limit = Gauge(
            "plait_queue_limit", "Sequences that may wait before more are refused", registry=registry
        )
        self.engine.taken = frozenset(family.name for family in self.registry.collect())
        self.registry.register(self.engine)

    @guarded
    def refused(self, reason: str) -> None:
        """``reason`` is an error code: they are all written down in this package, so the label is bounded."""
        self.refused_total.labels(reason).inc()

    @guarded
    def state(self, *, up: bool, ready: bool, queue_limit: int, stats: EngineStats | None) -> None:
        """The server's state at this moment, for the exposition that follows."""
        self.engine_up.set(up)
        self.ready.set(ready)
        self.queue_limit.set(queue_limit)
        self.engine.stats = stats

    def following(self, prompt_tokens: int, started: float) -> "Following":
        return Following(self, prompt_tokens, started)

    def exposition(self) -> bytes:
        """May raise, unlike all else here: a scrape that fails should be seen to fail."""
        return generate_latest(self.registry)


class Following:
    """Measures one request while it runs; knows from how it is left whether the request was complete."""

    __slots__ = ("_complete", "_last", "_metrics", "_prompt_tokens", "_started")

    def __init__(self, metrics: Metrics, prompt_tokens: int, started: float) -> None:
        self._metrics = metrics
        self._prompt_tokens = prompt_tokens
        self._started = started
        self._last: dict[int, float] = {}
        self._complete = False

    def __enter__(self) -> "Following":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if not self._complete:
            self.aborted(kind)

    def tokens(self, pieces: Sequence[OfChoice]) -> None:
        """One step's tokens, with one piece for each choice that got some."""
        try:  # Guarded by hand: the call that the decorator adds would be one for every token.
            now = time.monotonic()
            metrics, last = self._metrics, self._last
            if not last:
                metrics.first_token.observe(now - self._started)
                metrics.prompt_tokens.inc(self._prompt_tokens)
            for piece in pieces:
                choice = piece.choice
                before = last.get(choice)
                last[choice] = now
                if before is not None:
                    metrics.inter_token.observe(now - before)
                metrics.generated_tokens.inc(len(piece.token_ids))
        except Exception as error:
            self._failed(error)

    @guarded
    def _failed(self, error: Exception) -> None:
        raise error

    @guarded
    def complete(self) -> None:
        self._complete = True
        self._metrics.request_seconds.observe(time.monotonic() - self._started)

    @guarded
    def aborted(self, kind: type[BaseException] | None) -> None:
        if kind is not None and issubclass(kind, QueueFull | RequestRefused):
            return  # It never began; whoever answers counts it among the refused.
        gone = kind is not None and issubclass(kind, asyncio.CancelledError | GeneratorExit)
        reason = self._metrics.why_cancelled() if gone else "engine"
        self._metrics.aborted_total.labels(reason).inc()
