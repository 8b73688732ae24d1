"""A client's request as the engine sees it: one or more prompts, submitted, followed, and ended together."""

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any

from plait_engine.client import EngineClient
from plait_engine.pin import PinOrder
from plait_engine.request import Grammar, Request, SamplingParams
from plait_server.auth.keys import Key
from plait_server.auth.limits import Limiter
from plait_server.metrics import Metrics
from plait_server.part import Part
from plait_server.sequence_text import SequenceText, end_ids_of
from plait_server.text.tokenizer import TextTokenizer
from plait_server.work import Listener, Work


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
        self.prompt_tokens = sum(map(len, self.job.prompts))

    @contextmanager
    def working(self, listener: Listener) -> Iterator[None]:
        """Within it the work goes on and ``listener`` is told of it; leaving it early ends the work in the engine.

        Raises ``ApiError`` and ``EngineError`` where it cannot even begin.
        """
        info = self.engine.info
        capacity = info.max_seqs + info.max_queue
        sequences = len(self.parts) * self.job.n
        with (
            self.limiter.work(self.key, self.prompt_tokens, sequences, capacity) as used,
            self.metrics.following(self.prompt_tokens, self.started) as follow,
            closing(Work(self.engine, self.parts, listener, follow, used)) as work,
        ):
            work.start()
            yield

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
