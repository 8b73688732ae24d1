"""CASES 6 and 53 behind the arena: a state that lies in a slow tier comes back while others run, or is computed."""

from collections.abc import Callable
from typing import Any

import pytest

from plait_engine.state.checkpoint import Stage
from plait_engine.state.tiers.slow import NEVER, SlowTier
from tests.engine.reuse.client import MODELS, Client
from tests.engine.tiny import books, prompt_of, tiny_model

EACH = pytest.mark.parametrize("name", MODELS)
LOOPS = pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlapped"])
FAILURES, RESTORES = "plait_state_restore_failures_total", "plait_state_restores_total"


class Tiered(Client):
    """A prompt of 40 tokens leaves checkpoints at 16, 32 and 39."""

    def __init__(self, name: str, polls: int = 4, **more: Any) -> None:
        super().__init__(name, **more)
        self.cache, ledger = self.engine.scheduler.cache, self.engine.ledger
        self.tier = SlowTier(ledger.arena, ledger.groups, polls)
        self.cache.use_tier(self.tier)

    def offload(self, prompt: tuple[int, ...], tenant: str = "", most: int = 1) -> None:
        """The best ``most`` of the prompt's resume points."""
        for point in self.match(prompt, tenant).points[:most]:
            assert point.away or self.cache.offload(point.node)
            assert point.checkpoint is not None
            assert point.checkpoint.stage is Stage.OFFLOADED
            assert not point.checkpoint.owned()
        self.engine.check()

    def failures(self) -> dict[str, float]:
        return {labels: count for labels, count in self.engine.counters()[FAILURES].items() if count}


@EACH
@LOOPS
def test_a_state_comes_back_from_the_tier_and_is_what_it_was(name: str, overlap: bool) -> None:
    client, prompt = Tiered(name, overlap=overlap), prompt_of(40, seed=1)
    client.ask(prompt)
    client.offload(prompt, most=9)
    assert len(client.tier.contents) == client.engine.gauges()["plait_checkpoints"]["tier=slow"] == 3
    assert [client.ask(prompt + more) for more in ((), (5,), (5, 6, 7))] == [39, 39, 40]
    assert client.failures() == {}
    assert len(client.tier.contents) == 2  # What is in the arena again is not kept twice.
    kinds = {group.spec.kind for group in client.engine.ledger.groups if not group.full}
    restores = client.engine.counters()[RESTORES]
    assert {kind: restores[f"state={kind},tier=slow"] for kind in kinds} == dict.fromkeys(kinds, 1)


@EACH
@LOOPS
def test_others_run_while_one_waits_for_its_state(name: str, overlap: bool) -> None:
    client, prompt = Tiered(name, polls=20, overlap=overlap), prompt_of(40, seed=1)
    client.ask(prompt)
    client.offload(prompt)
    waits, runs = client.request(prompt), client.request(prompt_of(20, seed=2), max_tokens=6)
    client.load.add(waits, runs)
    ended = dict[str, int]()
    while not client.engine.idle:
        client.step()
        for request in (waits, runs):
            if client.load.answers[request.id, 0].finish is not None:
                ended.setdefault(request.id, client.engine.steps)
    client.finish()
    client.compare(waits, runs)
    assert ended[runs.id] < ended[waits.id]
    assert client.cached[waits.id, 0] == 39


@EACH
@pytest.mark.parametrize("lower", [0, 32])
def test_a_tier_that_fails_costs_the_tokens_behind_the_resume_point_before(name: str, lower: int) -> None:
    client, prompt = Tiered(name), prompt_of(40, seed=1)
    client.ask(prompt, max_tokens=1)
    client.offload(prompt, most=1 if lower else 3)
    client.tier.failing = True
    assert client.ask(prompt) == lower
    assert sum(client.failures().values()) == (1 if lower else 3)
    lost = client.engine.counters()["plait_prefix_lost_tokens_total"]
    assert lost["reason=restore_failed"] == 39 - lower
    client.tier.failing = False
    assert client.ask(prompt) == 39  # PAIRED


STATES = [(name, g.id) for name in ("braid", "gemma3", "lfm2") for g in tiny_model(name).plan.groups if not g.full]


@pytest.mark.parametrize(("name", "group"), STATES)
def test_case_6_the_tier_has_keys_and_values_but_not_the_state(name: str, group: Any) -> None:
    client, prompt = Tiered(name), prompt_of(40, seed=1)
    client.ask(prompt)
    client.offload(prompt)
    del next(iter(client.tier.contents.values()))[group]
    assert client.ask(prompt) == 32
    kind = client.engine.ledger.groups[group].spec.kind
    assert client.failures() == {f"state={kind},reason=tier_failed": 1}


@pytest.mark.parametrize(("name", "group"), STATES)
def test_bytes_that_changed_in_the_tier_are_noticed(name: str, group: Any) -> None:
    client, prompt = Tiered(name), prompt_of(40, seed=1)
    client.ask(prompt)
    client.offload(prompt)
    next(iter(client.tier.contents.values()))[group][0, 9] ^= 1
    assert client.ask(prompt) == 32
    kind = client.engine.ledger.groups[group].spec.kind
    assert client.failures() == {f"state={kind},reason=checksum": 1}


@EACH
def test_what_does_not_come_in_time_is_computed(name: str) -> None:
    client, prompt = Tiered(name, polls=NEVER), prompt_of(40, seed=1)
    client.ask(prompt)
    client.offload(prompt)
    client.cache.fetches.patience_seconds = 0.01
    request = client.request(prompt)
    client.load.add(request)
    for _ in range(500):
        client.step()
    client.compare(request)
    assert client.cached[request.id, 0] == 32
    assert [labels.split("=")[-1] for labels in client.failures()] == ["tier_timeout"]
    assert client.tier.cancelled == 1


@EACH
@LOOPS
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_whoever_goes_while_his_state_is_on_its_way_leaves_nothing(name: str, overlap: bool, steps: int) -> None:
    client, prompt = Tiered(name, polls=9, overlap=overlap), prompt_of(40, seed=1)
    client.ask(prompt)
    client.offload(prompt)
    request = client.request(prompt)
    client.load.add(request)
    for _ in range(steps):
        client.step()
        client.engine.check()
    assert client.cache.tree.open_leases == 1
    client.engine.abort(request.id)
    assert client.tier.cancelled == 1
    assert client.cache.tree.open_leases == 0
    client.finish()
    assert client.ask(prompt) == 39
    assert client.failures() == {}


@EACH
@LOOPS
def test_two_wait_for_one_state_and_one_of_them_goes(name: str, overlap: bool) -> None:
    client, prompt = Tiered(name, polls=9, overlap=overlap), prompt_of(40, seed=1)
    client.ask(prompt)
    client.offload(prompt)
    requests = [client.request(prompt), client.request((*prompt, 7)), client.request(prompt, n=2)]
    client.load.add(*requests)
    client.step()
    client.engine.abort(requests[0].id)
    client.finish()
    client.compare(*requests[1:])
    assert client.tier.cancelled == 0
    kinds = [labels for labels, count in client.engine.counters()[RESTORES].items() if "slow" in labels and count != 1]
    assert kinds == []
    assert client.cached[requests[1].id, 0] == client.cached[requests[2].id, 1] == 39


@EACH
def test_what_the_tier_gives_up_meanwhile_is_computed(name: str) -> None:
    client, prompt = Tiered(name, polls=9), prompt_of(40, seed=1)
    client.ask(prompt)
    client.offload(prompt)
    request = client.request(prompt)
    client.load.add(request)
    client.step()
    client.tier.drop(next(iter(client.tier.contents)))
    client.finish()
    client.compare(request)
    assert client.cached[request.id, 0] == 32
    assert sum(client.failures().values()) == 1


@EACH
def test_what_is_quarantined_while_it_is_on_its_way_is_given_back(name: str) -> None:
    client, prompt = Tiered(name, polls=9), prompt_of(40, seed=1)
    client.ask(prompt)
    client.offload(prompt)
    request = client.request(prompt)
    client.load.add(request)
    client.step()
    client.cache.quarantine("\0", prompt)
    client.engine.check()
    client.finish()
    client.compare(request)
    assert client.cache.tree.open_leases == 0
    assert client.ask(prompt) == 39


@EACH
def test_the_engine_ends_while_a_state_is_on_its_way(name: str) -> None:
    client, prompt = Tiered(name, polls=9), prompt_of(40, seed=1)
    client.ask(prompt)
    client.offload(prompt)
    client.load.add(client.request(prompt))
    client.step()
    client.engine.close()
    assert client.tier.closed
    assert client.tier.cancelled == 1
    assert client.cache.tree.open_leases == 0
    client.engine.check()


@EACH
def test_without_room_to_bring_it_nobody_waits(name: str) -> None:
    client, prompt = Tiered(name), prompt_of(40, seed=1)
    client.ask(prompt)
    client.offload(prompt)
    take, client.cache.fetches._take = client.cache.fetches._take, lambda _: None
    assert client.ask(prompt) == 32
    assert client.engine.counters()["plait_prefix_lost_tokens_total"]["reason=restoring"] == 7
    assert client.failures() == {}
    client.cache.fetches._take = take
    assert client.tier.contents == {}  # What was computed again took its place.
    assert client.ask(prompt) == 39


@pytest.mark.parametrize("name", ["granite", "gemma3"])
def test_what_is_evicted_goes_to_the_tier_and_is_there_when_its_time_comes(name: str) -> None:
    hits = []
    for use in (Tiered, Client):
        client = use(name, slabs=26, interval=1000)
        prompts = [prompt_of(16, seed=seed) for seed in range(9)]
        for prompt in prompts:
            client.ask(prompt)
        hits.append(sum(client.ask(prompt) for prompt in reversed(prompts)))
        books(client.engine)
    assert hits[0] > hits[1]


def test_a_tier_without_room_changes_nothing() -> None:
    client = Tiered("granite", slabs=30, interval=1000)
    client.tier.most = 1
    for seed in range(12):
        client.ask(prompt_of(16, seed=seed))
    evictions = client.engine.counters()["plait_evictions_total"]
    assert evictions["kind=checkpoint,reason=offloaded"] >= 1
    assert evictions["kind=leaf,reason=capacity"] >= 1
    assert len(client.tier.contents) <= 1


@EACH
def test_case_53_nobody_reuses_what_is_another_s_in_the_tier(name: str) -> None:
    client, prompt = Tiered(name), prompt_of(20, seed=1)
    keys = []
    for tenant in ("a", "b"):
        assert client.ask(prompt, tenant=tenant) == 0
        client.offload(prompt, tenant, most=9)
        keys.append(max(client.tier.contents))  # Of its lowest resume point.
    for tenant, salt in (("c", ""), ("", ""), ("a", "salt"), ("", "a")):
        assert client.ask(prompt, tenant=tenant, cache_salt=salt) == 0
    assert not any(count for labels, count in client.engine.counters()[RESTORES].items() if "tier=slow" in labels)
    assert client.ask(prompt, tenant="a") == 19  # PAIRED
    client.offload(prompt, "a", most=9)
    for key in [key for key in client.tier.contents if keys[0] < key <= keys[1]]:
        client.tier.drop(key)  # Of b: the tier lost them.
    assert client.ask(prompt, tenant="b") == 0
    assert client.ask(prompt, tenant="a") == 19


@EACH
def test_memory_that_a_fetch_holds_is_there_for_who_comes_first(name: str) -> None:
    client, prompt = Tiered(name, polls=NEVER), prompt_of(40, seed=1)
    client.ask(prompt)
    client.offload(prompt)
    waits = client.request(prompt)
    client.load.add(waits)
    client.step()
    real = client.engine.ledger.take
    client.engine.ledger.take = refuse_while(lambda: client.tier.cancelled == 0, real)  # type: ignore[method-assign]
    first = client.request(prompt_of(30, seed=2), priority=-1)
    client.load.add(first)
    client.step()
    assert client.tier.cancelled == 1
    client.tier.polls = 1
    client.finish()
    client.compare(first, waits)


def refuse_while(full: Callable[[], bool], take: Callable[..., Any]) -> Callable[..., Any]:
    return lambda demand, **how: None if full() else take(demand, **how)
