"""CASES 43, 50, 53: what is counted as reused was reused, and nobody reuses what is another's."""

import pytest

from plait_engine.state.poison import Poison
from tests.engine.reuse.client import MODELS, Client
from tests.engine.reuse.test_property import play
from tests.engine.tiny import Load, ask, check_against_oracle, greedy, prompt_of, tiny_engine

EACH = pytest.mark.parametrize("name", MODELS)


@EACH
def test_case_43_cached_tokens_are_those_skipped_at_first_admission(name: str) -> None:
    client, prompt = Client(name, interval=1000), prompt_of(30, seed=1)
    client.ask(prompt)
    request = client.request((*prompt, 5), max_tokens=8, n=3)
    client.load.add(request)
    for _ in range(4):
        client.step()
    client.engine.scheduler._preempt(client.engine.scheduler.running[-1])
    client.finish()
    client.compare(request)
    assert [client.cached[request.id, index] for index in range(3)] == [29, 29, 29]
    counters = client.engine.counters()
    assert counters["plait_prefix_lookup_tokens_total"] == {"": 61}
    assert counters["plait_prefix_hit_tokens_total"] == {"": 30}
    assert counters["plait_prefix_effective_hit_tokens_total"] == {"": 29}


@pytest.mark.parametrize("name", ["granite", "gemma3"])
def test_case_50_recomputation_is_no_hit(name: str) -> None:
    engine = tiny_engine(name, slabs={"granite": 14, "gemma3": 14}[name], reuse=True)
    requests = [ask(f"r{i}", (10 + i, *prompt_of(8, seed=i)), greedy(24)) for i in range(6)]
    load = Load(engine)
    load.add(*requests)
    check_against_oracle(name, load.finish(), requests)
    assert engine.scheduler.preempted > 0
    assert engine.counters()["plait_prefix_lookup_tokens_total"] == {"": 6 * 9}
    assert engine.counters()["plait_prefix_effective_hit_tokens_total"] == {"": 0}
    assert engine.counters()["plait_prefix_hit_tokens_total"] == {"": 0}
    assert sum(engine.counters()["plait_preemptions_total"].values()) == engine.scheduler.preempted


@pytest.mark.parametrize("seed", range(4))
def test_case_50_hits_minus_effective_hits_is_what_was_lost_by_reason(seed: int) -> None:
    world = play("braid", seed, 50, overlap=bool(seed % 2), slabs=60, poison=Poison.NAN)
    counters = world.engine.counters()
    hit, effective = (counters[f"plait_prefix_{kind}_tokens_total"][""] for kind in ("hit", "effective_hit"))
    assert hit - effective == sum(counters["plait_prefix_lost_tokens_total"].values())
    assert counters["plait_prefix_lookup_tokens_total"][""] >= hit >= effective > 0


def test_case_50_what_clients_are_told_adds_up_to_the_counter() -> None:
    client = Client("braid")
    told = sum(client.ask(prompt_of(12, seed=i % 3) + prompt_of(i, seed=7)) for i in range(12))
    assert told == client.counted("plait_prefix_effective_hit_tokens_total") > 0


def test_a_restore_that_is_found_untrue_is_no_hit() -> None:
    client, prompt = Client("granite", interval=1000), prompt_of(30, seed=1)
    client.ask(prompt)
    point, ledger = client.match(prompt).best, client.engine.ledger
    assert point is not None
    assert point.checkpoint is not None
    group = next(group for group in ledger.groups if not group.paged)
    ledger.arena.units(group.unit_bytes)[point.checkpoint.slots[group.id][0], 3] ^= 1
    assert client.ask(prompt) == 0
    counters = client.engine.counters()
    assert counters["plait_prefix_lookup_tokens_total"] == {"": 60}
    assert counters["plait_prefix_effective_hit_tokens_total"] == {"": 0}
    lost = counters["plait_prefix_lost_tokens_total"]
    assert {reason: tokens for reason, tokens in lost.items() if tokens} == {"reason=restore_failed": 29}
    assert client.counted("plait_state_restores_total") == 0
    assert client.ask(prompt) == 29
    assert counters["plait_state_restores_total"]["state=mamba2,tier=arena"] == 1


def test_series_whose_labels_are_known_are_there_before_anything_happens() -> None:
    counters = Client("braid").engine.counters()
    for name in ("restores", "restore_failures"):
        states = {labels.split(",")[0] for labels in counters[f"plait_state_{name}_total"]}
        assert states == {
            f"state={kind}" for kind in ("mamba2", "gated_delta_net", "sliding_attention", "conv", "full_attention")
        }
    assert all(value == 0 for series in counters.values() for value in series.values())


@EACH
def test_case_53_nobody_reuses_what_is_another_s(name: str) -> None:
    client, prompt = Client(name), prompt_of(20, seed=1)
    spaces = [("a", ""), ("b", ""), ("", ""), ("a", "salt"), ("", "a"), ("", "salt")]
    for tenant, salt in spaces:
        assert client.ask(prompt, tenant=tenant, cache_salt=salt) == 0
    for tenant, salt in spaces:
        assert client.ask(prompt, tenant=tenant, cache_salt=salt) == 19  # PAIRED
    point = client.match(prompt, "a").best
    assert point is not None
    client.engine.scheduler.cache.tree.drop_checkpoint(point.node)
    assert client.ask(prompt, tenant="a") < 19  # Evicted: also then nobody else's is taken.
    assert client.ask(prompt, tenant="b") == 19


def test_case_53_at_the_same_moment() -> None:
    client, prompt = Client("braid"), prompt_of(40, seed=1)
    requests = [client.request(prompt, tenant=tenant) for tenant in ("a", "b", "a")]
    client.load.add(*requests)
    client.step()
    # Nor does anybody wait for it: that would tell him that somebody else asks the same.
    assert [sequence.request.tenant for sequence in client.engine.scheduler.running] == ["a", "b"]
    client.finish()
    client.compare(*requests)
    assert [client.cached[request.id, 0] for request in requests] == [0, 0, 39]
