"""The front end's view of an engine, wherever it runs: submit, abort, ask how it is."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from typing import Protocol

import msgspec

from plait_engine.cache_order import CacheAnswer, CacheOrder
from plait_engine.request import Delta, Request


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine says of itself when it is ready."""

    model: str
    max_model_len: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    max_seqs: int
    max_queue: int
    report: str = ""
    """Start-up report for the log: layer table, kernels, memory plan, concurrency and what bounds it."""


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one moment, for the metrics endpoint. Counters only grow; gauges are as of the last step."""

    heartbeat_seconds: float = 0.0
    """Seconds since the engine last went round its loop."""
    stuck: bool = False
    """Queued or running work made no progress within the guard's time."""
    running: int = 0
    waiting: int = 0
    gauges: dict[str, dict[str, float]] = {}
    """Metric name to (labels written ``key=value,key=value``) to value."""
    counters: dict[str, dict[str, float]] = {}
    histograms: dict[str, dict[str, list[float]]] = {}
    """Like gauges, with the bucket counts (cumulative, last is +Inf), then the sum, in one list."""
    bounds: dict[str, list[float]] = {}
    """Per histogram, the upper bounds of its buckets, without the last (+Inf)."""


class EngineError(Exception):
    """Something went wrong with one request; the message is meant for the client."""


class RequestRefused(EngineError):
    """The engine can never serve this request (it would not fit); the message says what to change. HTTP 400."""


class QueueFull(EngineError):
    """Too many requests wait already. HTTP 503; ``retry_after_seconds`` is a fair guess."""

    def __init__(self, message: str, retry_after_seconds: int = 1) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class EngineDead(EngineError):
    """The engine is gone (or was never ready). HTTP 500 for requests under way, 503 for new ones."""


class Follower(Protocol):
    """Whoever hears of one request; called in the event loop. It must return soon and must not raise."""

    def take(self, deltas: list[Delta]) -> None:
        """What one step brought; several deltas where ``n`` is more than one."""

    def end(self, error: EngineError | None) -> None:
        """The last call: each of the sequences has a finish reason or was aborted, or something went wrong."""


class EngineClient(ABC):
    """Used from one event loop. Every submitted request ends: with a finish reason for each index, or an exception."""

    @property
    @abstractmethod
    def info(self) -> EngineInfo:
        """Valid once ``wait_ready`` has returned."""

    async def start(self) -> None:  # noqa: B027  # not every engine has something to start
        """Begin to load; returns at once. Called once, in the event loop that the client is then used from."""

    @abstractmethod
    async def wait_ready(self) -> None:
        """Return when the engine can take requests. Raises ``EngineDead`` with the reason when it could not start."""

    @abstractmethod
    def follow(self, request: Request, follower: Follower) -> None:
        """Begin; ``follower`` hears of deltas as they come, and of the end, but never before this has returned.

        Raises ``QueueFull``, ``RequestRefused`` or ``EngineDead``, or tells the follower, the first two before any
        delta. To end it early, ``abort`` it.
        """

    async def submit(self, request: Request) -> AsyncGenerator[list[Delta], None]:
        """``follow`` as an iterator, which raises what went wrong. Closing it early aborts what still runs."""
        inbox = _Inbox()
        self.follow(request, inbox)
        over = False
        try:
            while not over:
                item = await inbox.get()
                over = not isinstance(item, list)
                if isinstance(item, EngineError):
                    raise item
                if item:
                    yield item
        finally:
            if not over:
                self.abort(request.id)

    @abstractmethod
    def abort(self, request_id: str, index: int | None = None) -> None:
        """Stop one sequence, or all of a request. Unknown ids are ignored; its deltas simply end."""

    @property
    @abstractmethod
    def alive(self) -> bool:
        """False as soon as the engine is known to be gone."""

    @abstractmethod
    async def stats(self) -> EngineStats:
        """Raises ``EngineDead`` when there is no answer in time."""

    @abstractmethod
    async def cache_order(self, order: CacheOrder) -> CacheAnswer:
        """Show, or change, what is cached for one tenant. Raises ``EngineDead`` when there is no answer in time."""

    @abstractmethod
    async def shutdown(self) -> None:
        """End the engine; requests under way get ``EngineDead``. Idempotent."""


class _Inbox(asyncio.Queue[list[Delta] | EngineError | None]):
    """A ``Follower`` for those who wait."""

    def take(self, deltas: list[Delta]) -> None:
        self.put_nowait(deltas)

    def end(self, error: EngineError | None) -> None:
        self.put_nowait(error)
