"""One tenant sees nothing of another in what it gets, in what is computed for it, nor in how long that takes."""

import statistics
import time
from typing import Any

import pytest

from plait_engine.cache_order import CacheOrder, CacheVerb
from plait_engine.pin import PinOrder
from plait_engine.request import CacheReport
from tests.engine.reuse.client import MODELS, Client
from tests.engine.tiny import prompt_of

SHARED = prompt_of(30, seed=1)
Seen = tuple[int, int, CacheReport | None]
"""Of one request: tokens skipped, steps it took, and what it was told."""


class Watcher(Client):
    def __init__(self, name: str, **settings: Any) -> None:
        super().__init__(name, max_seqs=6, slabs=600, **settings)
        self.told: dict[str, CacheReport | None] = {}

    def step(self) -> None:
        for delta in self.load.step():
            self.cached[delta.request_id, delta.index] = (
                self.cached.get((delta.request_id, delta.index), 0) + delta.cached_tokens
            )
            self.told[delta.request_id] = delta.cache or self.told.get(delta.request_id)

    def watch(self, prompt: tuple[int, ...], **more: Any) -> Seen:
        before = self.load.steps
        request = self.request(prompt, **more)
        self.load.add(request)
        self.finish()
        self.compare(request)
        return self.cached[request.id, 0], self.load.steps - before, self.told[request.id]


def own_business(client: Watcher) -> list[Seen]:
    """A conversation with all that leaves a trace: repeats, branches, several answers, a salt, a pin, a drop."""
    hour = PinOrder(ttl_seconds=3600.0)
    seen = [
        client.watch(SHARED, tenant="b"),
        client.watch((*SHARED, *prompt_of(9, seed=2)), tenant="b"),
        client.watch((*SHARED[:17], *prompt_of(12, seed=3)), tenant="b", n=3),
        client.watch(SHARED, tenant="b", cache_salt="salt"),
        client.watch(prompt_of(20, seed=4), tenant="b", pin=hour),
        client.watch((*prompt_of(20, seed=4), 7, 8), tenant="b"),
    ]
    client.engine.cache_order(CacheOrder(tenant="b", verb=CacheVerb.DROP))
    return [*seen, client.watch(SHARED, tenant="b"), client.watch(SHARED, tenant="b")]


def others_business(client: Watcher, tenant: str, salt: str) -> None:
    """The same prompts, and ones that share their beginnings, in every way there is."""
    pin = PinOrder(ttl_seconds=60.0)
    ways: list[tuple[tuple[int, ...], dict[str, Any]]] = [
        ((*SHARED, *prompt_of(9, seed=2)), {}),
        ((*SHARED[:17], *prompt_of(12, seed=5)), {"n": 2}),
        ((*SHARED[:17], *prompt_of(12, seed=3)), {}),
        (SHARED, {"pin": pin}),
        (prompt_of(20, seed=4), {"marks": (11, 19)}),
    ]
    for prompt, more in ways:
        client.load.add(client.request(prompt, 2, tenant=tenant, cache_salt=salt, **more))
        client.finish()
    gone = client.request(SHARED, 9, tenant=tenant, cache_salt=salt)
    client.load.add(gone)
    client.step()
    client.engine.abort(gone.id)
    client.finish()


OTHERS = {"tenant": ("a", ""), "nobody": ("", ""), "salt": ("b", "pepper")}


CASES = [*((name, "tenant") for name in MODELS), ("braid", "nobody"), ("braid", "salt")]


@pytest.mark.parametrize(("name", "other"), CASES)
def test_whatever_others_have_asked_one_gets_and_computes_the_same(name: str, other: str) -> None:
    """PAIRED: within one's own part the same prompts are reused."""
    alone, beside = Watcher(name), Watcher(name)
    others_business(beside, *OTHERS[other])
    expected = own_business(alone)
    assert own_business(beside) == expected
    assert expected[1][0] > 0
    assert expected[5][0] >= 19


@pytest.mark.slow
@pytest.mark.parametrize("name", ["granite", "gemma3"])
def test_a_prompt_that_another_tenant_has_cached_takes_as_long_as_one_that_nobody_has(name: str) -> None:
    """50 pairs in turns. Processor time, since the machine is not ours alone. PAIRED: one's own is faster."""
    client = Watcher(name)
    length = 80
    for i in range(50):
        client.load.add(client.request(prompt_of(length, seed=2000 + i), 1, tenant="a"))
        client.finish()
    foreign: list[float] = []
    unknown: list[float] = []
    known: list[float] = []
    for i in range(-3, 50):
        cases = [(foreign, 2000 + max(i, 0)), (unknown, 4000 + i)]
        for times, seed in cases if i % 2 else reversed(cases):
            times.append(seconds_for(client, prompt_of(length, seed=seed)))
        known.append(seconds_for(client, prompt_of(length, seed=4000 + i)))
    apart = statistics.median(foreign[3:]) / statistics.median(unknown[3:])
    assert 0.95 < apart < 1.05
    assert statistics.median(known[3:]) < 0.8 * statistics.median(unknown[3:])


def seconds_for(client: Watcher, prompt: tuple[int, ...]) -> float:
    request = client.request(prompt, 1, tenant="b")
    started = time.process_time()
    client.load.add(request)
    while not client.engine.idle:
        client.step()
    return time.process_time() - started


def test_a_tenant_does_not_wait_for_what_another_is_computing() -> None:
    client = Watcher("braid")
    mine, theirs = client.request(SHARED, tenant="b"), client.request(SHARED, tenant="a")
    client.load.add(theirs, mine)
    client.step()
    assert {sequence.request.tenant for sequence in client.engine.scheduler.running} == {"a", "b"}
    client.finish()
    assert client.cached[mine.id, 0] == 0
    assert client.load.answers[mine.id, 0].tokens == client.load.answers[theirs.id, 0].tokens
