"""Whatever is asked, aborted, evicted and preempted: every answer is the one a cold run gives, and the books hold."""

import itertools
import random
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from plait_engine.cache_order import CacheOrder, CacheVerb
from plait_engine.engine import CannotFit, Engine
from plait_engine.pin import PinOrder
from plait_engine.request import Request
from plait_engine.state.poison import Poison
from plait_engine.state.tiers.slow import NEVER, SlowTier
from tests.engine.reuse.client import slabs_for_one
from tests.engine.rig import REFERENCE, Rig
from tests.engine.tiny import VOCAB, Load, assert_same, books, greedy, oracle, tiny_engine

MODELS = ("braid", "granite", "gemma3")
"""Everything at once; state and full attention; windows and full attention, where a checkpoint copies nothing."""
LONGEST = 70


@dataclass
class World:
    """Clients that come back with what they were told, share beginnings, and go away when they like."""

    name: str
    engine: Engine
    rng: random.Random
    tier: SlowTier | None = None
    rig: Rig = REFERENCE
    load: Load = field(init=False)
    asked: dict[tuple[str, int], Request] = field(default_factory=dict)
    said: list[tuple[int, ...]] = field(default_factory=list)
    effective: int = 0
    pins: random.Random | None = None

    def __post_init__(self) -> None:
        self.load = Load(self.engine)

    def turn(self, more: bool) -> None:
        rng = self.rng
        if more and rng.random() < 0.35 and len(self.asked) < 8:
            self._ask(f"{len(self.load.answers)}-{rng.randrange(10**6)}")
        if self.asked and rng.random() < 0.06:
            self._abort(rng.choice(list(self.asked)))
        if self.tier is not None and rng.random() < 0.1:
            self._trouble(self.tier)
        for delta in self.load.step():
            self.effective += delta.cached_tokens
            if delta.finish_reason is not None:
                self._compare(self.asked.pop((delta.request_id, delta.index)), delta.index)
        if rng.random() < 0.2:
            self.engine.check()
        if self.pins is not None and self.pins.random() < 0.02:
            order = CacheOrder(tenant=self.pins.choice(("", "other")), verb=CacheVerb.SHOW)
            for pin in self.engine.cache_order(order).pins[:1]:
                self.engine.cache_order(CacheOrder(tenant=order.tenant, verb=CacheVerb.UNPIN, pin=pin.id))
            self.engine.cache_order(CacheOrder(tenant=order.tenant, verb=CacheVerb.DROP))

    def _ask(self, id: str) -> None:
        rng = self.rng
        start: tuple[int, ...] = ()
        if self.said and rng.random() < 0.75:
            start = rng.choice(self.said[-12:])
            start = start[: rng.randrange(1, len(start) + 1)] if rng.random() < 0.5 else start
        prompt = start + tuple(rng.randrange(3, VOCAB) for _ in range(rng.choice((0, 1, 2, 3, 7, 20))))
        request = Request(
            id=id,
            prompt=(prompt or (7,))[:LONGEST],
            sampling=greedy(rng.choice((1, 2, 5, 9))),
            n=rng.choice((1, 1, 1, 2, 3)),
            tenant=rng.choice(("", "", "other")),
            marks=(rng.randrange(1, 40),) if rng.random() < 0.3 else (),
            pin=self._pin(),
        )
        try:
            self.load.add(request)
        except CannotFit:
            return
        self.asked |= {(id, index): request for index in range(request.n)}

    def _trouble(self, tier: SlowTier) -> None:
        """It fails for a while, gets slower or faster, has no room, loses something."""
        rng = self.rng
        tier.failing = rng.random() < 0.1
        tier.polls = rng.choice((1, 1, 2, 5, 20, NEVER))
        tier.most = rng.choice((0, 2, 8, NEVER))
        if tier.contents and rng.random() < 0.3:
            contents = tier.contents[rng.choice(list(tier.contents))]
            contents.pop(rng.choice([*contents, None]), None)

    def _pin(self) -> PinOrder | None:
        """Some are over within the test, some are not."""
        if self.pins is None or self.pins.random() < 0.7:
            return None
        return PinOrder(ttl_seconds=self.pins.choice((0.02, 60.0)), position=self.pins.choice((None, 5, 40)))

    def _abort(self, key: tuple[str, int]) -> None:
        self.engine.abort(*key)
        del self.asked[key]

    def _compare(self, request: Request, index: int) -> None:
        answer = self.load.answers[request.id, index]
        alone = Request(id="alone", prompt=request.prompt, sampling=request.sampling)
        assert len(answer.tokens) == request.sampling.max_tokens
        assert_same(answer, oracle(self.name, alone, self.rig)[0])
        self.said.append(request.prompt + tuple(answer.tokens))


def play(
    name: str,
    seed: int,
    turns: int,
    overlap: bool,
    slabs: int,
    poison: Poison,
    tiered: bool = False,
    pins: bool = False,
    rig: Rig = REFERENCE,
) -> World:
    rng = random.Random(seed)
    engine = tiny_engine(
        name,
        max_seqs=rng.choice((2, 3, 5)),
        padding=rng.choice((1, 8)),
        overlap=overlap,
        poison=poison,
        slabs=slabs,
        reuse=True,
        interval=rng.choice((5, 16, 64)),
        rig=rig,
    )
    tier = SlowTier(engine.ledger.arena, engine.ledger.groups) if tiered else None
    if tier is not None:
        engine.scheduler.cache.use_tier(tier)
        ticks = itertools.count()  # Of looks, not of seconds, so that it can be repeated.
        engine.scheduler.cache.fetches._now = lambda: next(ticks)
        engine.scheduler.cache.fetches.patience_seconds = 30
    world = World(name, engine, rng, tier, rig)
    if pins:
        world.pins = random.Random(seed)
        limits, ledger = engine.scheduler.limits, engine.ledger
        needed = slabs_for_one(ledger.groups, limits, ledger.slabs.slab_bytes)
        engine.scheduler.cache.pins.budget_slabs = max(0, ledger.slabs.total - needed)
    for turn in range(turns * 20):
        if turn >= turns and not world.asked:
            break
        world.turn(more=turn < turns)
    world.load.finish()
    books(engine)
    return world


LOADS: dict[str, st.SearchStrategy[Any]] = {
    "seed": st.integers(0, 10**9),
    "overlap": st.booleans(),
    "slabs": st.integers(9, 90),
    "poison": st.sampled_from((Poison.NAN, Poison.LARGE)),
    "tiered": st.booleans(),
    "pins": st.booleans(),
}


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(name=st.sampled_from(MODELS), **LOADS)
@example("braid", 1, True, 60, Poison.NAN, False, False)
@example("braid", 1, True, 60, Poison.NAN, False, True)
@example("braid", 1, True, 20, Poison.NAN, True, False)
@example("gemma3", 50420, False, 15, Poison.NAN, False, False)  # A chunk wanted the pages of a decode that was planned.
def test_a_hit_gives_the_answer_of_a_cold_run(
    name: str, seed: int, overlap: bool, slabs: int, poison: Poison, tiered: bool, pins: bool
) -> None:
    play(name, seed, turns=40, overlap=overlap, slabs=slabs, poison=poison, tiered=tiered, pins=pins)


TIGHT = {"braid": (14, 16), "granite": (11, 12), "gemma3": (9, 10)}
"""Slabs that hold two or three sequences and little else."""


@pytest.mark.parametrize("name", MODELS)
def test_such_loads_do_hit_evict_and_preempt(name: str) -> None:
    """PAIRED: the property would hold of a cache that never finds anything."""
    roomy = [play(name, seed, 120, overlap=bool(seed), slabs=200, poison=Poison.NAN) for seed in range(2)]
    tight = [
        play(name, seed, 60, overlap=False, slabs=slabs, poison=Poison.NAN) for seed in (2, 4) for slabs in TIGHT[name]
    ]
    tiered = [play(name, 7, 120, False, slabs, Poison.NAN, tiered=True) for slabs in (20, 30, 40)]
    assert sum(world.effective for world in roomy) > 300
    restores = [world.engine.counters()["plait_state_restores_total"] for world in tiered]
    assert any(count for counts in restores for labels, count in counts.items() if "tier=slow" in labels)
    assert any(world.engine.scheduler.preempted for world in tight)
    assert all(sum(world.engine.stats.counters["plait_evictions_total"].values()) for world in tight)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("overlap", [False, True])
def test_twenty_thousand_steps_are_clean(name: str, overlap: bool) -> None:
    for seed in range(10):
        play(
            name,
            seed,
            400,
            overlap=overlap,
            slabs=9 + 5 * seed,
            poison=Poison.NAN,
            tiered=seed % 3 == 1,
            pins=seed % 2 == 1,
        )
