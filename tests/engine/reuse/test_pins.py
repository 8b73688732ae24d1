"""Pins: what is pinned stays, however tight memory is, until its time is over; and never costs others their answers."""

from typing import Any

import pytest

from plait_engine.cache_order import CacheAnswer, CacheOrder, CacheRefusal, CacheVerb
from plait_engine.engine import CannotFit
from plait_engine.pin import PinOrder, PinOutcome
from plait_engine.scheduler.scheduler import SchedulerLimits
from plait_engine.state.pins import MAX_PINS
from tests.engine.reuse.client import MODELS, Client, slabs_for_one
from tests.engine.tiny import BUDGET, ask, assert_same, books, greedy, oracle, prompt_of, tiny_model

HOUR = PinOrder(ttl_seconds=3600.0)


class Pinner(Client):
    """With a clock that the test moves, and the outcome of the last order."""

    def __init__(self, name: str = "braid", **settings: Any) -> None:
        super().__init__(name, **settings)
        self.now = 1000.0
        self.pins = self.engine.scheduler.cache.pins
        self.pins._now = lambda: self.now
        self.pins.budget_slabs = 10_000
        self.outcome: PinOutcome | None = None

    def step(self) -> None:
        for delta in self.load.step():
            key = delta.request_id, delta.index
            self.cached[key] = self.cached.get(key, 0) + delta.cached_tokens
            if delta.pin is not None:
                self.outcome = delta.pin

    def pin(self, prompt: tuple[int, ...], order: PinOrder = HOUR, tenant: str = "", **more: Any) -> PinOutcome:
        """As the endpoint does: compute the prompt, generate nothing."""
        self.outcome = None
        request = ask(f"pin{len(self.load.answers)}", prompt, greedy(0), pin=order, tenant=tenant, **more)
        self.load.add(request)
        self.finish()
        assert self.outcome is not None
        return self.outcome

    def order(self, verb: CacheVerb = CacheVerb.SHOW, tenant: str = "", **more: Any) -> CacheAnswer:
        return self.engine.cache_order(CacheOrder(tenant=tenant, verb=verb, **more))

    def flood(self, rounds: int = 12, length: int = 60) -> None:
        """Prompts that nothing has in common with anything, far more than memory holds."""
        for i in range(rounds):
            self.ask(prompt_of(length, seed=700 + i), 2)


def pinned_id(outcome: PinOutcome) -> str:
    assert outcome.pin is not None, outcome.refusal
    return outcome.pin.id


@pytest.mark.parametrize("name", MODELS)
def test_what_is_pinned_survives_a_flood_that_evicts_all_else(name: str) -> None:
    client = Pinner(name, slabs=90, max_seqs=2, max_model_len=72)
    shared, other = prompt_of(30, seed=1), prompt_of(30, seed=2)
    pin = client.pin(shared).pin
    assert pin is not None
    assert pin.tokens == 29
    client.ask(other)
    client.flood()
    assert client.ask((*shared, *prompt_of(9, seed=3))) == 29
    assert client.ask((*other, *prompt_of(9, seed=3))) == 0
    assert client.counted("plait_evictions_total") > 0


@pytest.mark.parametrize("name", MODELS)
def test_when_its_time_is_over_a_pin_is_evicted_like_anything_else(name: str) -> None:
    client = Pinner(name, slabs=90, max_seqs=2, max_model_len=72)
    shared = prompt_of(30, seed=1)
    client.pin(shared, PinOrder(ttl_seconds=60.0))
    client.now += 59.0
    client.flood()
    assert client.ask((*shared, 5, 6, 7)) == 29
    client.now += 2.0
    client.flood(24)
    assert client.ask((*shared, 8, 9, 10)) == 0
    assert client.order().pins == ()
    assert client.engine.counters()["plait_pin_events_total"]["event=expired"] == 1


@pytest.mark.parametrize("name", MODELS)
def test_the_longest_request_is_served_beside_all_that_may_be_pinned(name: str) -> None:
    """Though pins lie scattered over slabs of eight units and more, among what was evicted around them."""
    groups = tiny_model(name).plan.groups
    slab_bytes = 8 * max(group.unit_bytes for group in groups)
    limits = SchedulerLimits(max_batch_tokens=BUDGET, max_seqs=2, max_model_len=72)
    needed = slabs_for_one(groups, limits, slab_bytes)
    client = Pinner(name, max_seqs=2, max_model_len=72, slab_bytes=slab_bytes, slabs=needed + 6)
    client.pins.budget_slabs = 6
    refused = 0
    for seed in range(40):
        for i in range(4):
            client.ask(prompt_of(3, seed=900 + 4 * seed + i), 1)
        try:
            refused += client.pin(prompt_of(3 + seed % 3, seed=seed)).refusal is not None
        except CannotFit:
            refused += 1
    assert refused
    assert client.order().pins
    client.ask(prompt_of(60, seed=5), 12)
    client.ask(prompt_of(71, seed=6), 1)


@pytest.mark.parametrize("name", MODELS)
def test_a_pin_that_cannot_fit_is_refused_before_anything_is_computed(name: str) -> None:
    client = Pinner(name)
    one = client.pin(prompt_of(20, seed=1)).pin
    assert one is not None
    client.pins.budget_slabs = slabs_in_use(client) + 1
    steps = client.load.steps
    with pytest.raises(CannotFit, match=r"cannot be pinned.*pin_share"):
        client.load.add(ask("large", prompt_of(80, seed=2), greedy(0), pin=HOUR))
    assert client.load.steps == steps
    assert client.engine.idle
    assert client.pin(prompt_of(20, seed=1)).pin is not None, "what is pinned already takes no more room"
    assert len(client.order().pins) == 1


def slabs_in_use(client: Pinner) -> int:
    pools = client.engine.ledger.pools
    units = client.pins._units_of(pin.point for pin in client.pins._pins.values())
    return sum(-(-count // pools[group].per_slab) for group, count in units.items())


def test_what_two_pins_share_counts_once() -> None:
    client = Pinner("lfm2")
    shared = prompt_of(40, seed=1)
    client.pin(shared)
    alone = client.pins.pinned_bytes()
    client.pin((*shared, 5, 6, 7))
    client.pin((*shared, 8, 9, 10))
    assert client.pins.pinned_bytes() < 2 * alone
    for pin in client.order().pins:
        client.order(CacheVerb.UNPIN, pin=pin.id)
    assert client.pins.pinned_bytes() == 0


@pytest.mark.parametrize("name", MODELS)
def test_the_same_prefix_pinned_again_is_one_pin_that_lasts_longer(name: str) -> None:
    client = Pinner(name)
    first = client.pin(prompt_of(20), PinOrder(ttl_seconds=60.0)).pin
    again = client.pin(prompt_of(20), PinOrder(ttl_seconds=600.0)).pin
    shorter = client.pin(prompt_of(20), PinOrder(ttl_seconds=1.0)).pin
    assert first is not None
    assert again is not None
    assert shorter is not None
    assert first.id == again.id == shorter.id
    assert [p.expires_in_seconds for p in (first, again, shorter)] == [60.0, 600.0, 600.0]
    assert len(client.order().pins) == 1


def test_a_tenant_sees_and_takes_off_its_own_pins_only() -> None:
    """PAIRED: its own id works."""
    client = Pinner("granite")
    id = pinned_id(client.pin(prompt_of(20), tenant="a"))
    assert client.order(tenant="b").pins == ()
    assert client.order(CacheVerb.UNPIN, tenant="b", pin=id).refusal is CacheRefusal.UNKNOWN_PIN
    assert client.order(CacheVerb.UNPIN, tenant="", pin=id).refusal is CacheRefusal.UNKNOWN_PIN
    assert [pin.id for pin in client.order(tenant="a").pins] == [id]
    assert client.order(CacheVerb.UNPIN, tenant="a", pin=id).refusal is None
    assert client.order(tenant="a").pins == ()
    assert client.order(CacheVerb.UNPIN, tenant="a", pin=id).refusal is CacheRefusal.UNKNOWN_PIN


@pytest.mark.parametrize("id", ["", "pin-", "x" * 10_000, "\0", "../a", "pin-" + "0" * 32])
def test_an_id_of_nothing_is_unknown(id: str) -> None:
    client = Pinner("granite")
    client.pin(prompt_of(20))
    assert client.order(CacheVerb.UNPIN, pin=id).refusal is CacheRefusal.UNKNOWN_PIN
    assert len(client.order().pins) == 1


def test_the_same_prompt_of_two_tenants_or_salts_is_two_pins_and_no_hit() -> None:
    client = Pinner("braid")
    prompt = prompt_of(24)
    ids = {pinned_id(client.pin(prompt, tenant=tenant, cache_salt=salt)) for tenant in "ab" for salt in ("", "s")}
    assert len(ids) == 4
    assert client.ask((*prompt, 9), tenant="a") >= 23
    assert client.ask((*prompt, 9), tenant="c") == 0


def test_one_tenant_cannot_pin_without_end() -> None:
    client = Pinner("lfm2", slabs=4000)
    for seed in range(MAX_PINS):
        assert client.pin(prompt_of(3, seed=seed), tenant="greedy").pin is not None
    with pytest.raises(CannotFit, match="take one off"):
        client.load.add(ask("more", prompt_of(4, seed=99), greedy(0), pin=HOUR, tenant="greedy"))
    assert client.pin(prompt_of(4, seed=99), tenant="modest").pin is not None


def test_the_operators_pins_are_not_taken_off_nor_shortened_by_clients() -> None:
    client = Pinner("granite")
    id = pinned_id(client.pin(prompt_of(20), PinOrder(ttl_seconds=None, configured=True)))
    assert pinned_id(client.pin(prompt_of(20), PinOrder(ttl_seconds=1.0))) == id
    client.now += 10_000.0
    (pin,) = client.order().pins
    assert (pin.id, pin.expires_in_seconds, pin.configured) == (id, None, True)
    assert client.order(CacheVerb.UNPIN, pin=id).refusal is CacheRefusal.CONFIGURED


def test_a_position_says_what_of_a_prompt_is_pinned() -> None:
    client = Pinner("braid", slabs=90, max_seqs=2, max_model_len=72)
    prompt = prompt_of(50, seed=1)
    pin = client.pin(prompt, PinOrder(ttl_seconds=60.0, position=20), marks=(20, 49)).pin
    assert pin is not None
    assert pin.tokens == 20
    client.flood()
    assert client.ask((*prompt[:20], *prompt_of(20, seed=8))) == 20


def test_a_request_that_generates_can_pin_its_prompt_too() -> None:
    client = Pinner("braid")
    client.ask(prompt_of(30), 5, pin=HOUR, n=2)
    assert pinned_id(client.outcome or PinOutcome(None))
    assert client.engine.counters()["plait_pin_events_total"]["event=created"] == 1


def test_a_prompt_without_a_prefix_and_a_server_without_reuse_refuse_pins() -> None:
    client = Pinner("granite")
    with pytest.raises(CannotFit, match="one token"):
        client.load.add(ask("short", prompt_of(1), greedy(0), pin=HOUR))
    off = Pinner("granite", reuse=False)
    with pytest.raises(CannotFit, match="prefix reuse is off"):
        off.load.add(ask("off", prompt_of(9), greedy(0), pin=HOUR))


def test_where_the_state_found_no_room_the_pin_is_refused_and_the_answer_is_right() -> None:
    client = Pinner("granite")
    reserve = client.engine.scheduler.cache.reserve
    client.engine.scheduler.cache.reserve = lambda *_: None  # type: ignore[method-assign]
    request = ask("r", prompt_of(20), greedy(3), pin=HOUR)
    client.load.add(request)
    client.finish()
    assert_same(client.load.answers["r", 0], oracle("granite", ask("alone", request.prompt, request.sampling))[0])
    assert client.outcome is not None
    assert client.outcome.pin is None
    assert "no room" in (client.outcome.refusal or "")
    client.engine.scheduler.cache.reserve = reserve  # type: ignore[method-assign]
    assert client.pin(prompt_of(20)).pin is not None


@pytest.mark.parametrize("name", MODELS)
def test_a_pin_that_is_found_broken_ends_and_leaves_nothing(name: str) -> None:
    client = Pinner(name)
    prompt = prompt_of(20)
    client.pin(prompt)
    node = next(node for node in client.engine.scheduler.cache.tree.nodes() if node.pinned)
    assert node.checkpoint is not None
    node.checkpoint.fingerprint = "another model"
    client.ask(prompt)
    assert client.counted("plait_state_restore_failures_total") == 1
    assert client.order().pins == ()
    assert client.engine.counters()["plait_pin_events_total"]["event=broken"] == 1
    client.order(CacheVerb.DROP)
    books(client.engine)
    assert client.order().tokens == 0
    assert client.pin(prompt).pin is not None


@pytest.mark.parametrize("name", MODELS)
def test_dropping_forgets_a_tenants_prefixes_but_no_pin_and_nobody_elses(name: str) -> None:
    client = Pinner(name)
    kept, mine, theirs = prompt_of(20, seed=1), prompt_of(20, seed=2), prompt_of(20, seed=3)
    client.pin(kept, tenant="a")
    client.ask(mine, tenant="a")
    client.ask((*kept, 5, 6, 7), tenant="a")
    client.ask(theirs, tenant="b")
    before = client.order(tenant="a")
    answer = client.order(CacheVerb.DROP, tenant="a")
    assert answer.dropped_tokens == before.tokens - answer.tokens > 0
    books(client.engine)
    assert client.ask((*kept, 9), tenant="a") >= 19
    assert client.ask((*mine, 9), tenant="a") == 0
    assert client.ask((*theirs, 9), tenant="b") >= 19


def test_dropping_one_salt_leaves_the_others() -> None:
    client = Pinner("granite")
    for salt in ("", "x", "y"):
        client.ask(prompt_of(20), cache_salt=salt)
    assert client.order().namespaces == 3
    assert client.order(CacheVerb.DROP, cache_salt="x").namespaces == 0
    assert client.order().namespaces == 2


@pytest.mark.parametrize("name", MODELS)
def test_dropping_in_the_middle_of_a_request_leaves_its_answer_right(name: str) -> None:
    client = Pinner(name)
    prompt = prompt_of(40)
    client.ask(prompt)
    request = client.request((*prompt, *prompt_of(30, seed=4)), 6)
    client.load.add(request)
    while not client.engine.idle:
        client.order(CacheVerb.DROP)
        client.step()
    client.compare(request)
    books(client.engine)


def test_figures_of_pins_are_gauges() -> None:
    client = Pinner("granite")
    client.pin(prompt_of(20))
    gauges = client.engine.gauges()
    assert gauges["plait_pins"] == {"": 1.0}
    assert 0 < gauges["plait_pinned_bytes"][""] <= gauges["plait_pin_budget_bytes"][""]
