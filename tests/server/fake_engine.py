"""An engine without a model: the tokens it is told to give, at the pace it is told, failing when it is told."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from itertools import islice

from plait_engine.cache_order import CacheAnswer, CacheOrder
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
from plait_engine.pin import PinOutcome
from plait_engine.request import CacheReport, Delta, FinishReason, Request, TokenLogprobs

Tokens = Callable[[Request, int], Sequence[int]]


def counting(request: Request, index: int) -> list[int]:
    """Other tokens for every prompt and index, the same ones each time; never an end token (id 0)."""
    start = sum(request.prompt) + 7 * index
    return [40 + (start + 3 * place) % 50 for place in range(request.sampling.max_tokens)]


def logprob_of(token_id: int, place: int) -> float:
    return -((token_id * 37 + place * 11) % 100) / 16 - 0.1


def row(token_id: int, place: int, number: int, vocab_size: int) -> TokenLogprobs:
    """The most probable tokens, and where the chosen one stands among them."""
    candidates = sorted({(token_id + step) % vocab_size for step in range(24)})
    ranked = sorted(((logprob_of(other, place), other) for other in candidates), reverse=True)
    rank = 1 + [other for _, other in ranked].index(token_id)
    top = tuple((other, logprob) for logprob, other in ranked[:number])
    return TokenLogprobs(token_id, logprob_of(token_id, place), rank, top)


class FakeEngine(EngineClient):
    """Every attribute may be changed between requests, and most of them during one."""

    def __init__(self, *, vocab_size: int = 512, max_model_len: int = 256, eos: tuple[int, ...] = (0,)) -> None:
        self.engine_info = EngineInfo(
            model="fake",
            max_model_len=max_model_len,
            vocab_size=vocab_size,
            eos_token_ids=eos,
            max_seqs=64,
            max_queue=64,
        )
        self.tokens: Tokens = counting
        self.step_seconds = 0.0
        self.tokens_per_step = 1
        self.full = False
        self.refusal: str | None = None
        self.start_failure: str | None = None
        self.error_at_step: int | None = None
        self.die_at_step: int | None = None
        self.cached_tokens = 0
        self.known_beyond = 0
        self.ignores_aborts = False
        """As if deltas had been on their way already when the abort was sent."""
        self.current = EngineStats()
        self.requests: list[Request] = []
        self.aborted: list[tuple[str, int | None]] = []
        self.running: dict[str, set[int]] = {}
        self.feeding: dict[str, asyncio.Task[None]] = {}
        self.orders: list[CacheOrder] = []
        self.cache_answer = CacheAnswer()
        self.pin_outcome: PinOutcome | None = None
        self.steps = 0
        self.loaded = asyncio.Event()
        self.loaded.set()
        self.go = asyncio.Event()
        self.go.set()
        self.is_dead = False
        self.shut_down = False

    def always(self, token_ids: Sequence[int]) -> None:
        """From now on these tokens, whatever the prompt."""
        self.tokens = lambda _, __: token_ids

    @property
    def info(self) -> EngineInfo:
        return self.engine_info

    @property
    def alive(self) -> bool:
        return not self.is_dead

    @property
    def sequences_running(self) -> int:
        return sum(map(len, self.running.values()))

    async def wait_ready(self) -> None:
        await self.loaded.wait()
        if self.start_failure is not None:
            raise EngineDead(self.start_failure)

    async def stats(self) -> EngineStats:
        if self.is_dead or not self.go.is_set():
            raise EngineDead("no answer")
        return self.current

    async def cache_order(self, order: CacheOrder) -> CacheAnswer:
        if self.is_dead or not self.go.is_set():
            raise EngineDead("no answer")
        self.orders.append(order)
        return self.cache_answer

    async def shutdown(self) -> None:
        self.shut_down = True
        self.kill()

    def kill(self) -> None:
        self.is_dead = True
        self.go.set()

    def abort(self, request_id: str, index: int | None = None) -> None:
        self.aborted.append((request_id, index))
        if self.ignores_aborts:
            return
        if index is None:
            self.running.pop(request_id, None)
            if request_id in self.feeding:
                self.feeding.pop(request_id).cancel()
        else:
            self.running.get(request_id, set()).discard(index)

    def follow(self, request: Request, follower: Follower) -> None:
        self.feeding[request.id] = asyncio.create_task(self._feed(request, follower))

    async def _feed(self, request: Request, follower: Follower) -> None:
        error = None
        try:
            async with aclosing(self.submit(request)) as stream:
                async for deltas in stream:
                    follower.take(deltas)
        except EngineError as raised:
            error = raised
        self.feeding.pop(request.id, None)
        follower.end(error)

    async def submit(self, request: Request) -> AsyncGenerator[list[Delta], None]:
        if self.is_dead:
            raise EngineDead("the engine is gone")
        if self.full:
            raise QueueFull("64 requests wait already", 7)
        if self.refusal is not None:
            raise RequestRefused(self.refusal)
        self.requests.append(request)
        self.running[request.id] = set(range(request.n))
        planned = {index: list(self.tokens(request, index)) for index in range(request.n)}
        done = dict.fromkeys(planned, 0)
        try:
            for step in range(1_000_000):
                await self._step(step)
                live = sorted(self.running.get(request.id, ()))
                if not live:
                    return
                yield [self._delta(request, index, planned[index], done) for index in live]
        finally:
            self.running.pop(request.id, None)

    async def _step(self, step: int) -> None:
        await asyncio.sleep(self.step_seconds)
        await self.go.wait()
        self.steps += 1
        if step == self.die_at_step:
            self.kill()
        if self.is_dead:
            raise EngineDead("the engine is gone")

    def _delta(self, request: Request, index: int, planned: list[int], done: dict[int, int]) -> Delta:
        sampling = request.sampling
        first = done[index]
        room = min(self.tokens_per_step, sampling.max_tokens - first)
        ids = list(islice(planned, first, first + room))
        if len(ids) < room:
            ids.append(self.engine_info.eos_token_ids[0])
        ends = set(sampling.stop_token_ids) | (set() if sampling.ignore_eos else set(self.engine_info.eos_token_ids))
        ended = next((place for place, token_id in enumerate(ids) if token_id in ends), None)
        reason = None
        if ended is not None:
            ids, reason = ids[: ended + 1], FinishReason.STOP
        elif first + len(ids) >= sampling.max_tokens:
            reason = FinishReason.LENGTH
        error = None
        if self.error_at_step is not None and first >= self.error_at_step:
            ids, reason, error = [], FinishReason.ERROR, "a kernel failed"
        done[index] += len(ids)
        if reason is not None:
            self.running[request.id].discard(index)
        stop_reason = ids[-1] if ids and ids[-1] in sampling.stop_token_ids else None
        return Delta(
            request_id=request.id,
            index=index,
            token_ids=tuple(ids),
            logprobs=self._rows(request, ids, first),
            finish_reason=reason,
            stop_reason=stop_reason if reason is FinishReason.STOP else None,
            # Further sequences of a request reuse what the first one has just computed.
            cached_tokens=0 if first else self.cached_tokens if index == 0 else len(request.prompt) - 1,
            prompt_logprobs=self._prompt_rows(request) if first == 0 else None,
            error=error,
            cache=self._report(request, index) if first == 0 else None,
            pin=self.pin_outcome if first == 0 and index == 0 and request.pin is not None else None,
        )

    def _report(self, request: Request, index: int) -> CacheReport:
        """Everything asked for is left; of what is known, ``known_beyond`` tokens cannot be reused."""
        if index:
            return CacheReport(len(request.prompt) - 1, len(request.prompt) - 1, None, ())
        known = self.cached_tokens + self.known_beyond
        reason = "no_checkpoint" if self.known_beyond else None if known else "no_match"
        return CacheReport(known, self.cached_tokens, reason, request.marks)

    def _rows(self, request: Request, ids: list[int], first: int) -> tuple[TokenLogprobs, ...] | None:
        number = request.sampling.logprobs
        if number is None:
            return None
        vocab_size = self.engine_info.vocab_size
        start = len(request.prompt) + first
        return tuple(row(token_id, start + place, number, vocab_size) for place, token_id in enumerate(ids))

    def _prompt_rows(self, request: Request) -> tuple[TokenLogprobs | None, ...] | None:
        number = request.sampling.prompt_logprobs
        if number is None:
            return None
        vocab_size = self.engine_info.vocab_size
        rows = [row(token_id, place, number, vocab_size) for place, token_id in enumerate(request.prompt)]
        return (None, *rows[1:])
