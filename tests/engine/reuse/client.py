"""One who asks an engine with prefix reuse, one request after the other, and believes no answer before comparing it."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from plait_engine.engine import Engine
from plait_engine.request import Request
from plait_engine.scheduler.scheduler import SchedulerLimits
from plait_engine.state.resume_point import Match
from plait_engine.state.sequence_state import SequenceState
from plait_engine.state.spec import StateGroup
from tests.engine.tiny import KINDS, Answer, Load, ask, assert_same, books, greedy, oracle, tiny_engine

MODELS = ("braid", *KINDS)
INTERVAL = 16


class Client:
    def __init__(self, name: str = "braid", **settings: Any) -> None:
        self.name = name
        self.engine: Engine = tiny_engine(name, **{"reuse": True, "interval": INTERVAL} | settings)
        self.load = Load(self.engine)
        self.cached: dict[tuple[str, int], int] = {}
        self.reply: tuple[int, ...] = ()
        """Of the last request."""
        self._asked = 0

    def request(self, prompt: Sequence[int], max_tokens: int = 4, **more: Any) -> Request:
        self._asked += 1
        return ask(f"r{self._asked}", prompt, greedy(max_tokens), **more)

    def ask(self, prompt: Sequence[int], max_tokens: int = 4, **more: Any) -> int:
        """Run it alone, compare it with the oracle; how many tokens were skipped."""
        request = self.request(prompt, max_tokens, **more)
        self.load.add(request)
        self.finish()
        self.compare(request)
        self.reply = tuple(self.load.answers[request.id, 0].tokens)
        return self.cached[request.id, 0]

    def step(self) -> None:
        for delta in self.load.step():
            key = delta.request_id, delta.index
            self.cached[key] = self.cached.get(key, 0) + delta.cached_tokens

    def finish(self) -> None:
        while not self.engine.idle:
            assert self.load.steps < 50_000
            self.step()
        books(self.engine)

    def compare(self, *requests: Request) -> None:
        for request in requests:
            alone = ask("alone", request.prompt, request.sampling)
            for index in range(request.n):
                answer: Answer = self.load.answers[request.id, index]
                assert len(answer.tokens) == request.sampling.max_tokens
                assert_same(answer, oracle(self.name, alone)[0])

    def match(self, prompt: Sequence[int], tenant: str = "", salt: str = "") -> Match:
        return self.engine.scheduler.cache.tree.match(f"{tenant}\0{salt}", np.array(prompt, np.int32))

    def counted(self, name: str) -> float:
        return sum(self.engine.counters()[name].values())


def slabs_for_one(groups: tuple[StateGroup, ...], limits: SchedulerLimits, slab_bytes: int) -> int:
    """What the longest sequence takes, with the reserved page and slot."""
    demand = SequenceState(groups).admission_demand(limits.max_model_len, limits.max_batch_tokens)
    reserved = {group.id: 1 if group.paged else group.units_per_slot for group in groups}
    return sum(-(-(demand[g.id] + reserved[g.id]) // (slab_bytes // g.unit_bytes)) for g in groups)
