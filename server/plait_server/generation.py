"""A client's request as the engine sees it: one or more prompts, submitted, followed, and ended together."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any

from plait_engine.client import EngineClient, EngineError
from plait_engine.pin import PinOrder, PinOutcome
from plait_engine.request import CacheReport, Delta, FinishReason, Grammar, Request, SamplingParams, TokenLogprobs
from plait_server.auth.keys import Key
from plait_server.auth.limits import Limiter, unlimited
from plait_server.metrics import Metrics
from plait_server.sequence_text import Piece, SequenceText, end_ids_of
from plait_server.text.tokenizer import TextTokenizer

log = logging.getLogger(__name__)

GIVEN_UP = frozenset({FinishReason.ERROR, FinishReason.ABORT})


@dataclass(frozen=True, kw_only=True)
class Job:
    """What to generate; everything in it has been validated."""

    prompts: tuple[tuple[int, ...], ...]
    sampling: SamplingParams
    n: int = 1
    priority: int = 0
    cache_salt: str = ""
    include_stop: bool = False
    skip_special_tokens: bool = True
    shown_ids: frozenset[int] = frozenset()
    """Special tokens that are not skipped in any case."""
    grammar: Grammar | None = None
    marks: tuple[int, ...] = ()
    """Positions in the only prompt where later ones may go on from."""
    pin: PinOrder | None = None
    offsets: tuple[int, ...] = ()
    """Per prompt, the length of text that precedes the generated one in the answer (echo)."""


@dataclass(slots=True)
class Part:
    """One prompt of the job and its sequences; choice ``place * n + i`` is sequence ``i``."""

    request: Request
    choices: list[SequenceText]
    prompt_logprobs: Sequence[TokenLogprobs | None] | None = None
    cached_tokens: int = 0
    """Of the prompt, really skipped."""
    cache: CacheReport | None = None
    pin: PinOutcome | None = None

    def begin(self, first: Delta) -> None:
        """What the first delta of a sequence says of the prompt."""
        if first.prompt_logprobs is not None:
            self.prompt_logprobs = first.prompt_logprobs
        if first.cached_tokens and first.index == 0:
            # Of n sequences the first tells what was cached before; the others reuse what it computed.
            self.cached_tokens = first.cached_tokens
        if first.cache is not None and first.index == 0:
            self.cache = first.cache
            log.debug("%s: of %d prompt tokens %s", self.request.id, len(self.request.prompt), first.cache)
        self.pin = first.pin or self.pin

    @property
    def written(self) -> int:
        """Tokens of the prompt that could not be reused before, and can from now on."""
        last = 0 if self.cache is None else max(self.cache.checkpoints, default=0)
        return max(0, last - self.cached_tokens)


@dataclass(kw_only=True)
class Generation:
    """Runs a job once."""

    job: Job
    engine: EngineClient
    tokenizer: TextTokenizer
    metrics: Metrics
    limiter: Limiter = field(default_factory=Limiter)
    key: Key | None = None
    """Whose limits the work counts against; its tenant is part of the cache's namespace."""
    failure: str | None = None
    """Code of the error that ended a stream after its beginning."""
    started: float = field(default_factory=time.monotonic)
    parts: list[Part] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.parts = [self._part(place) for place in range(len(self.job.prompts))]
        self._parts_by_id = {part.request.id: part for part in self.parts}
        self.unfinished = len(self.parts) * self.job.n
        """Choices that have no finish reason yet."""
        self.prompt_tokens = sum(map(len, self.job.prompts))

    async def pieces(self) -> AsyncGenerator[list[Piece], None]:
        """All choices' pieces as they come. Raises ``EngineError``; closing it early ends the work in the engine."""
        info = self.engine.info
        capacity = info.max_seqs + info.max_queue
        with (
            self.limiter.work(self.key, self.prompt_tokens, self.unfinished, capacity) as used,
            self.metrics.following(self.prompt_tokens, self.started) as follow,
        ):
            source = self.engine.submit(self.parts[0].request) if len(self.parts) == 1 else self._merged()
            async with aclosing(source):
                async for deltas in source:
                    if pieces := self._advance(deltas):
                        follow.tokens(pieces)
                        if used is not unlimited:
                            used(sum(len(piece.token_ids) for piece in pieces))
                        yield pieces
                        if not self.unfinished:
                            break
            if self.unfinished:
                raise EngineError("the engine ended this request before it was complete")
            follow.complete()

    def usage(self) -> dict[str, Any]:
        """Token counts so far. A prompt counts once, whatever ``n`` is; cached tokens are part of it."""
        completion_tokens = sum(choice.completion_tokens for part in self.parts for choice in part.choices)
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": self.prompt_tokens + completion_tokens,
            "prompt_tokens_details": {
                "cached_tokens": sum(part.cached_tokens for part in self.parts),
                "cache_write_tokens": sum(part.written for part in self.parts),
            },
        }

    def _part(self, place: int) -> Part:
        job = self.job
        request = Request(
            id=token_hex(12),
            prompt=job.prompts[place],
            sampling=job.sampling,
            n=job.n,
            priority=job.priority,
            tenant="" if self.key is None else self.key.tenant,
            cache_salt=job.cache_salt,
            marks=job.marks,
            grammar=job.grammar,
            pin=job.pin,
        )
        end_ids = end_ids_of(self.engine.info.eos_token_ids, job.sampling)
        choices = [
            SequenceText(
                place * job.n + i,
                job.sampling,
                self.tokenizer.detokenizer(
                    request.prompt, skip_special_tokens=job.skip_special_tokens, shown=job.shown_ids
                ),
                end_ids,
                include_stop=job.include_stop,
                offset=job.offsets[place] if job.offsets else 0,
            )
            for i in range(job.n)
        ]
        return Part(request, choices)

    def _advance(self, deltas: list[Delta]) -> list[Piece]:
        pieces = []
        for delta in deltas:
            part = self._parts_by_id[delta.request_id]
            choice = part.choices[delta.index]
            if not choice.begun:
                choice.begun = True
                part.begin(delta)
            if choice.finished:
                continue  # was on its way when a stop string ended the choice
            if delta.finish_reason is not None and delta.finish_reason in GIVEN_UP:
                raise EngineError(delta.error or "the engine gave up on this request")
            piece = choice.advance(delta)
            if piece.finish_reason is not None:
                self.unfinished -= 1
                if delta.finish_reason is None:
                    self.engine.abort(part.request.id, delta.index)
            pieces.append(piece)
        return pieces

    async def _merged(self) -> AsyncGenerator[list[Delta], None]:
        """Several prompts at once; the first failure ends them all."""
        arrived: asyncio.Queue[list[Delta] | Exception | None] = asyncio.Queue()

        async def follow(part: Part) -> None:
            try:
                async with aclosing(self.engine.submit(part.request)) as stream:
                    async for deltas in stream:
                        arrived.put_nowait(deltas)
                arrived.put_nowait(None)
            except Exception as error:
                arrived.put_nowait(error)

        tasks = [asyncio.create_task(follow(part)) for part in self.parts]
        try:
            going = len(tasks)
            while going:
                item = await arrived.get()
                if isinstance(item, Exception):
                    raise item
                if item is None:
                    going -= 1
                else:
                    yield item
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
