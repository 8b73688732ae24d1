"""The real engine and scheduler around a runner without tensors that remembers who wrote what where.

What a page or a slot holds is written down token by token, and every step checks that all it reads is there, is the
sequence's own and was written in this life of the sequence: a wrong page, a stale slot or a skipped token is an error.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from plait_engine.engine import Engine
from plait_engine.request import Delta, FinishReason, Request, SamplingParams
from plait_engine.runner.grammars import Grammars
from plait_engine.runner.runner import Sampled
from plait_engine.scheduler.scheduler import Scheduler, SchedulerLimits
from plait_engine.scheduler.step_plan import Row, StepPlan
from plait_engine.sequence import Sequence
from plait_engine.state.arena import Arena
from plait_engine.state.ledger import Poison
from plait_engine.state.prefix_cache import PrefixCache
from plait_engine.state.spec import Granule, GroupId, PagedSpec, SlotSpec, StateGroup, TensorSpec, group_specs
from tests.engine.tiny import EOS, PAGE, WINDOW, SmallSlabs, books

_ENTRY = (TensorSpec("k", (1, 8), torch.float32), TensorSpec("v", (1, 8), torch.float32))
FULL = PagedSpec("full_attention", _ENTRY)
SLIDING = PagedSpec("sliding_attention", _ENTRY, window=WINDOW)
RECURRENT = SlotSpec("mamba2", (TensorSpec("ssm", (8, 8), torch.float32),))
HYBRID = group_specs(((FULL,), (RECURRENT,), (SLIDING,), (RECURRENT,)), PAGE)
"""Pages, window pages and slots of two rows each; every unit is 256 bytes."""
ATTENTION = group_specs(((FULL,),), PAGE)
UNIT = 256

Mark = tuple[int, int, int]
"""Sequence (its arrival), its life (preemptions), position."""


def token_of(sequence: Sequence, position: int, ends: float = 0.0) -> int:
    """What the fake model says at a position: depends on the prompt and the position, as a real one does."""
    rng = random.Random(hash((sequence.request.prompt, sequence.index, position)))
    return EOS if rng.random() < ends else rng.randrange(3, 1000)


@dataclass
class FakeLaunched:
    plan: StepPlan
    sampled: dict[Sequence, Sampled]
    blocks_planning: bool = False
    planned_seconds: float = 0.0

    def wait(self) -> dict[Sequence, Sampled]:
        return self.sampled


@dataclass
class FakeRunner:
    groups: tuple[StateGroup, ...]
    budget: int
    ends: float = 0.0
    """Probability of an end token at each position."""
    blocks: Callable[[Sequence], bool] = lambda _: False
    vocab_size: int = 1000
    grammars: Grammars = field(default_factory=lambda: Grammars(None))
    plans: list[StepPlan] = field(default_factory=list)
    _pages: dict[tuple[GroupId, Granule, int], Mark] = field(default_factory=dict)
    _slots: dict[tuple[GroupId, Granule], Mark] = field(default_factory=dict)

    def launch(self, plan: StepPlan) -> FakeLaunched:
        self.plans.append(plan)
        self._check_shape(plan)
        for row in plan.rows:
            self._compute(row)
        sampled = {r.sequence: Sampled(token_of(r.sequence, r.end, self.ends)) for r in plan.rows if r.samples}
        return FakeLaunched(plan, sampled, any(self.blocks(s) for s in sampled))

    def _check_shape(self, plan: StepPlan) -> None:
        assert 0 < plan.tokens <= self.budget
        assert len({id(row.sequence) for row in plan.rows}) == len(plan.rows), "a sequence is twice in a step"
        counts = [row.count for row in plan.rows]
        assert all(count >= 1 for count in counts)
        assert counts[: plan.decodes] == [1] * plan.decodes, "decodes come first"
        rows = [row.sequence.row for row in plan.rows]
        assert len(set(rows)) == len(rows)
        assert all(row >= 0 for row in rows)
        assert all(row.sequence.finish is None for row in plan.rows), "an ended sequence is scheduled"

    def _compute(self, row: Row) -> None:
        """Read all that the row's tokens depend on, and write what they leave."""
        sequence = row.sequence
        life = (sequence.arrival, sequence.preemptions)
        for group in self.groups:
            if isinstance(group.spec, SlotSpec):
                units = sequence.state.slots[group.id]
                assert len(units) == group.units_per_slot
                for unit in units:
                    if row.start:
                        assert self._slots[group.id, unit] == (*life, row.start), "the slot is not at the row's start"
                    self._slots[group.id, unit] = (*life, row.end)
                continue
            run = sequence.state.runs[group.id]
            place = {
                entry: (group.id, run.pages[entry // PAGE - run.first], entry % PAGE)
                for entry in range(run.first * PAGE, (run.first + len(run.pages)) * PAGE)
            }
            for position in range(row.start, row.end):
                self._pages[place[position]] = (*life, position)
                first = 0 if group.spec.window is None else max(0, position - group.spec.window + 1)
                for entry in range(first, position + 1):
                    assert self._pages[place[entry]] == (*life, entry), "an entry is missing, or somebody else's"


def fake_engine(
    *,
    groups: tuple[StateGroup, ...] = HYBRID,
    slabs: int = 400,
    units_per_slab: int = 2,
    budget: int = 13,
    max_seqs: int = 6,
    max_model_len: int = 200,
    overlap: bool = False,
    ends: float = 0.0,
) -> Engine:
    unit = units_per_slab * UNIT
    ledger = SmallSlabs(Arena(slabs * unit, torch.device("cpu")), groups, Poison.OFF, unit)
    scheduler = Scheduler(SchedulerLimits(budget, max_seqs, max_model_len), PrefixCache.disabled(ledger))
    return Engine(scheduler, FakeRunner(groups, budget, ends), [EOS], overlap)  # type: ignore[arg-type]


def plans(engine: Engine) -> list[StepPlan]:
    runner = engine.runner
    assert isinstance(runner, FakeRunner)
    return runner.plans


def request(id: str, prompt: int, max_tokens: int = 4, **more: Any) -> Request:
    """``more`` beside n and priority goes to the sampling parameters."""
    own = {key: more.pop(key) for key in ("n", "priority") if key in more}
    tokens = tuple(random.Random(id).randrange(3, 1000) for _ in range(prompt))
    return Request(id=id, prompt=tokens, sampling=SamplingParams(max_tokens=max_tokens, **more), **own)


def expected_tokens(asked: Request, index: int = 0, ends: float = 0.0, max_model_len: int = 200) -> list[int]:
    """What the fake model generates, computed without an engine."""
    sequence = Sequence(asked, index, 0, None)  # type: ignore[arg-type]
    tokens: list[int] = []
    while len(tokens) < asked.sampling.max_tokens and len(asked.prompt) + len(tokens) < max_model_len:
        tokens.append(token_of(sequence, len(asked.prompt) + len(tokens), ends))
        if tokens[-1] == EOS:
            break
    return tokens


class FakeLoad:
    """Adds, aborts and steps; at the end every request that was not aborted must have had its exact tokens, once."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.tokens: dict[tuple[str, int], list[int]] = {}
        self.finished: dict[tuple[str, int], FinishReason] = {}
        self.requests: dict[str, Request] = {}
        self.aborted: set[tuple[str, int]] = set()
        self.steps = 0

    def add(self, *requests: Request) -> None:
        for asked in requests:
            self.engine.add(asked)
            self.requests[asked.id] = asked
            self.tokens |= {(asked.id, i): [] for i in range(asked.n)}

    def abort(self, id: str, index: int | None = None) -> None:
        for i in range(self.requests[id].n) if index is None else [index]:
            if (id, i) not in self.finished:
                self.aborted.add((id, i))
        self.engine.abort(id, index)

    def step(self) -> list[Delta]:
        deltas = self.engine.step()
        self.steps += 1
        for delta in deltas:
            key = (delta.request_id, delta.index)
            assert key not in self.finished, "a delta came after the end"
            assert key not in self.aborted, "a delta came after the abort"
            assert delta.error is None, delta.error
            self.tokens[key].extend(delta.token_ids)
            if delta.finish_reason is not None:
                self.finished[key] = delta.finish_reason
        self.engine.check()
        return deltas

    def finish(self, most: int = 5000) -> None:
        while not self.engine.idle:
            assert self.steps < most, "the engine does not come to an end"
            self.step()
        books(self.engine)
        runner = self.engine.runner
        assert isinstance(runner, FakeRunner)
        for (id, index), tokens in self.tokens.items():
            limit = self.engine.scheduler.limits.max_model_len
            expected = expected_tokens(self.requests[id], index, runner.ends, limit)
            if (id, index) in self.aborted:
                assert tokens == expected[: len(tokens)]
            else:
                assert tokens == expected
                reason = FinishReason.STOP if EOS in tokens else FinishReason.LENGTH
                assert self.finished[id, index] == reason


def step_of_first_token(load: FakeLoad, id: str, most: int = 1000) -> int:
    """Steps until the request's first token is out."""
    before = load.steps
    while not load.tokens[id, 0]:
        assert load.steps - before < most
        load.step()
    return load.steps - before
