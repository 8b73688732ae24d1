"""An ``EngineClient`` whose engine lives in another process."""

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
import zmq
import zmq.asyncio

from plait_engine.cache_order import CacheAnswer, CacheOrder
from plait_engine.child import Child
from plait_engine.client import (
    EngineClient,
    EngineDead,
    EngineError,
    EngineInfo,
    EngineStats,
    Follower,
    QueueFull,
    RequestRefused,
)
from plait_engine.config import EngineConfig
from plait_engine.messages import (
    Abort,
    Add,
    AskCache,
    AskStats,
    CacheReply,
    Deltas,
    Failed,
    FromEngine,
    Progress,
    Ready,
    Refused,
    Shutdown,
    StatsReply,
    ToEngine,
    decode_from_engine,
    encode,
)
from plait_engine.request import Delta, Request

log = logging.getLogger("plait.engine")

STATS_TIMEOUT_SECONDS = 5.0
END_TIMEOUT_SECONDS = 5.0
Answer = TypeVar("Answer")


class _Followed:
    """One request on the front end's side: where its deltas go, and which of its sequences still run."""

    def __init__(self, request: Request, follower: Follower) -> None:
        self.follower = follower
        self.open = set(range(request.n))


class RemoteEngine(EngineClient):
    """Talks to the engine's process over a socket. ``launch`` starts it, as early as may be; ``start`` does where
    nobody has, and listens to it."""

    def __init__(self, config: EngineConfig, progress: Callable[[str], None] = lambda _: None) -> None:
        self._config = config
        self._progress = progress
        self._info: EngineInfo | None = None
        self._requests: dict[str, _Followed] = {}
        self._stats: deque[asyncio.Future[EngineStats]] = deque()
        """One for each question that was sent, in order, also of those that nobody waits for any more."""
        self._cache_answers: deque[asyncio.Future[CacheAnswer]] = deque()
        """Likewise."""
        self._started: asyncio.Future[EngineInfo] | None = None
        self._death: str | None = None
        self._child: Child | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def launch(self) -> None:
        """Start the process; what it says is heard from ``start`` on."""
        self._child = self._child or Child(self._config)

    def abandon(self) -> None:
        """End a process that was launched and is not wanted after all."""
        if self._child is not None:
            self._child.kill()
            self._child.clean_up()
            self._child = None

    async def start(self) -> None:
        """Start the process, unless it was launched; returns at once. ``wait_ready`` says when it can be used."""
        self._started = asyncio.get_running_loop().create_future()
        self.launch()
        assert self._child is not None
        self._ended = self._child.ended()
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.set_hwm(0)
        self._socket.bind(self._child.address)
        self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._watch())]

    @property
    def info(self) -> EngineInfo:
        if self._info is None:
            raise EngineDead("the engine is not ready yet")
        return self._info

    @property
    def alive(self) -> bool:
        return self._death is None

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child else None

    async def wait_ready(self) -> None:
        if self._started is None:
            raise EngineDead("the engine was not started")
        await asyncio.shield(self._started)

    def follow(self, request: Request, follower: Follower) -> None:
        self._refuse(request)
        self._requests[request.id] = _Followed(request, follower)

        def check(sent: asyncio.Future[Any]) -> None:
            if not sent.cancelled() and sent.exception() is not None:
                self._end(request.id, EngineDead("the engine process is gone"))

        self._post(Add(request)).add_done_callback(check)

    def abort(self, request_id: str, index: int | None = None) -> None:
        followed = self._requests.get(request_id)
        if followed is not None:
            followed.open = set() if index is None else followed.open - {index}
            if not followed.open:
                del self._requests[request_id]
                # Told later: who aborts may be in the middle of taking deltas.
                asyncio.get_running_loop().call_soon(followed.follower.end, None)
        if self.alive:
            sent = self._post(Abort(request_id, index))
            sent.add_done_callback(lambda sent: sent.cancelled() or sent.exception())  # Who is gone aborts nothing.

    def _end(self, request_id: str, error: EngineError | None = None) -> None:
        """The request is over, and its id free again."""
        followed = self._requests.pop(request_id, None)
        if followed is not None:
            followed.follower.end(error)

    async def stats(self) -> EngineStats:
        asked = time.monotonic()
        stats = await self._ask(AskStats(), self._stats)
        return msgspec.structs.replace(stats, heartbeat_seconds=time.monotonic() - asked)

    async def cache_order(self, order: CacheOrder) -> CacheAnswer:
        return await self._ask(AskCache(order), self._cache_answers)

    async def _ask(self, question: ToEngine, waiting: deque[asyncio.Future[Answer]]) -> Answer:
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        await self._send(question)
        waiting.append(answer)
        try:
            return await asyncio.wait_for(answer, STATS_TIMEOUT_SECONDS)
        except TimeoutError:
            raise EngineDead("the engine does not answer") from None

    async def shutdown(self) -> None:
        child = self._child
        if child is None:
            return
        with contextlib.suppress(EngineDead):
            if self._info is None:
                child.kill()  # It does not listen before it is ready.
            else:
                await self._send(Shutdown())
        try:
            await asyncio.wait_for(asyncio.shield(self._ended), END_TIMEOUT_SECONDS)
        except TimeoutError:
            child.kill()
            await self._ended
        self._die("the engine was shut down", logging.DEBUG)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._socket.close(linger=0)
        self._context.term()
        child.clean_up()
        self._child = None

    def _refuse(self, request: Request) -> None:
        """What can be refused without asking the engine, so that a flood costs it nothing."""
        info = self.info
        if self._death is not None:
            raise EngineDead(self._death)
        if request.id in self._requests:
            raise RequestRefused(f"request id {request.id!r} is in use")
        unfinished = sum(len(followed.open) for followed in self._requests.values())
        if unfinished and unfinished + request.n > info.max_seqs + info.max_queue:
            raise QueueFull(f"{unfinished} sequences run or wait already; try again later")

    def _post(self, message: ToEngine) -> asyncio.Future[Any]:
        """Never waits: the socket has no limit, so it takes a message at once, or nobody is at the other end."""
        return asyncio.ensure_future(self._socket.send(encode(message), zmq.NOBLOCK))

    async def _send(self, message: ToEngine) -> None:
        if self._death is not None:
            raise EngineDead(self._death)
        try:
            await self._post(message)
        except zmq.Again:
            raise EngineDead("the engine process is gone") from None

    async def _listen(self) -> None:
        try:
            while True:
                self._handle(decode_from_engine(await self._socket.recv()))
        except Exception as error:  # Nobody else reads what the engine says: without this, all would wait for ever.
            self._die(f"what the engine said could not be handled: {type(error).__name__}: {error}")
            if self._child is not None:
                self._child.kill()

    def _handle(self, message: FromEngine) -> None:
        match message:
            case Deltas(deltas):
                self._deliver(deltas)
            case Refused(request_id, reason):
                self._end(request_id, RequestRefused(reason))
            case StatsReply(stats):
                if not (answer := self._stats.popleft()).done():
                    answer.set_result(stats)
            case CacheReply(told):
                if not (waits := self._cache_answers.popleft()).done():
                    waits.set_result(told)
            case Progress(text):
                self._progress(text)
            case Ready(info):
                self._info = info
                assert self._started is not None
                self._started.set_result(info)
            case Failed(reason):
                self._die(reason)

    def _deliver(self, deltas: list[Delta]) -> None:
        """One call per request and step."""
        shares: dict[str, list[Delta]] = {}
        for delta in deltas:
            shares.setdefault(delta.request_id, []).append(delta)
        for request_id, own in shares.items():
            followed = self._requests.get(request_id)
            if followed is None:
                continue
            if wanted := [delta for delta in own if delta.index in followed.open]:
                followed.follower.take(wanted)
            followed.open -= {delta.index for delta in own if delta.finish_reason is not None}
            if not followed.open and request_id in self._requests:
                self._end(request_id)

    async def _watch(self) -> None:
        code = await asyncio.shield(self._ended)
        await asyncio.sleep(0.05)  # Let its last message, which says why, be read first.
        self._die(f"the engine process ended with code {code}")

    def _die(self, reason: str, level: int = logging.ERROR) -> None:
        if self._death is not None:
            return
        self._death = reason
        if self._info is not None:  # Else whoever waits for the start tells.
            log.log(level, "the engine has stopped: %s", reason)
        error = EngineDead(reason)
        if self._started is not None and not self._started.done():
            self._started.set_exception(error)
        for request_id in list(self._requests):
            self._end(request_id, error)
        questions: list[asyncio.Future[Any]] = [*self._stats, *self._cache_answers]
        for answer in questions:
            if not answer.done():
                answer.set_exception(error)
