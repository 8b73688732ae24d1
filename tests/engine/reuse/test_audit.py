"""Audits: hits that were right pass, a wrong one is caught and what it came from dropped, and nobody waits for it."""

import atexit
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch

from plait_engine.audit import MOST_PENDING
from plait_engine.config import ConfigError, EngineConfig
from plait_engine.state.checkpoint import Checkpoint
from plait_engine.state.prefix_cache import PrefixCache
from tests.engine.reuse.client import MODELS, Client
from tests.engine.tiny import ask, assert_same, books, greedy, oracle, prompt_of, tiny_engine, tiny_model

EACH = pytest.mark.parametrize("name", MODELS)


class Audited(Client):
    """Audits every hit."""

    def __init__(self, name: str, **more: Any) -> None:
        super().__init__(name, **{"audit_rate": 1.0} | more)
        atexit.register(self.engine.auditor.defer)  # A test that fails amid an audit must not take pytest with it.

    def audit(self) -> dict[str, float]:
        """All that is pending; how many had which result so far."""
        while self.engine.audit():
            self.engine.check()
        books(self.engine)
        counts = self.engine.counters()["plait_hit_audits_total"]
        return {labels.removeprefix("result="): count for labels, count in counts.items()}

    def give(self, prompt: tuple[int, ...], **more: Any) -> int:
        """``ask`` without comparing."""
        request = self.request(prompt, **more)
        self.load.add(request)
        self.finish()
        return self.cached[request.id, 0]


@EACH
@pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlapped"])
def test_hits_that_are_right_pass(name: str, overlap: bool) -> None:
    client = Audited(name, overlap=overlap)
    history = prompt_of(20, seed=1)
    for turn in range(4):  # From the end of an answer, which decoding has built.
        client.ask(history, max_tokens=6)
        history += client.reply + prompt_of(3, seed=turn)
    client.ask(prompt_of(20, seed=1))  # Known as a whole: restored and sampled in one step.
    client.ask(prompt_of(60, seed=2))
    client.ask(prompt_of(60, seed=2)[:50] + prompt_of(4, seed=3))
    assert client.audit() == {"match": 5, "mismatch": 0, "dropped": 0}
    assert client.match(prompt_of(20, seed=1)).known == 20  # It is all still there.


@EACH
def test_what_others_share_and_what_came_back_after_a_preemption_is_audited_too(name: str) -> None:
    client = Audited(name, interval=1000)
    request = client.request(prompt_of(30, seed=1), max_tokens=8, n=3)
    client.load.add(request)
    for _ in range(6):
        client.step()
    client.engine.scheduler._preempt(client.engine.scheduler.running[-1])
    client.finish()
    client.compare(request)
    assert client.audit() == {"match": 3, "mismatch": 0, "dropped": 0}


GROUPS = [(name, group.id) for name in ("braid", "gemma3", "qwen3_5") for group in tiny_model(name).plan.groups]


def spoil(client: Client, group_id: int) -> Callable[[PrefixCache, Any, Checkpoint, Any], None]:
    """Publishes a wrong state, as a bug would: its checksum is that of what is stored."""
    publish, ledger = PrefixCache.publish, client.engine.ledger
    group = ledger.groups[group_id]

    def published(cache: PrefixCache, sequence: Any, checkpoint: Checkpoint, receipt: Any) -> None:
        own = checkpoint.owned() if not group.full else {group.id: sequence.state.runs[group.id].pages}
        units = torch.tensor(own[group.id])
        for index, tensor in ((i, t) for i in range(len(group.layers)) for t in group.spec.tensors):
            rows = units if group.paged else units[index : index + 1]
            if group.paged or index < len(units):
                ledger.arena.view(group, index if group.paged else 0, tensor.name)[rows] *= -1.5
        publish(cache, sequence, checkpoint, receipt)

    return published


@pytest.mark.parametrize(("name", "group_id"), GROUPS)
def test_a_wrong_state_that_passes_every_check_is_caught_and_out_of_use(
    name: str, group_id: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    client, bad, good = Audited(name, interval=1000), prompt_of(22, seed=1), prompt_of(21, seed=2)
    assert client.audit() == {"match": 0, "mismatch": 0, "dropped": 0}
    client.give(good)
    client.give(bad, tenant="other")
    with monkeypatch.context() as patch:
        patch.setattr(PrefixCache, "publish", spoil(client, group_id))
        client.give(bad, max_tokens=1)
    more = (*bad[:-1], 90, 91)
    assert client.give(more) == 21
    with caplog.at_level(logging.ERROR, "plait.audit"):
        assert client.audit() == {"match": 0, "mismatch": 1, "dropped": 0}
    (record,) = caplog.records
    assert "prompt of 23 tokens that went on from 21" in record.message
    assert client.match(more).known == 0  # Also what was computed on top of it.
    assert client.ask(more) == 0
    assert client.ask(more) == 22
    assert client.ask(good) == 20  # PAIRED: what does not share its beginning is still in use.
    assert client.ask(bad, tenant="other") == 21
    assert client.audit() == {"match": 3, "mismatch": 1, "dropped": 0}


@EACH
def test_rounding_is_no_mismatch_and_twice_the_tolerance_is_one(name: str) -> None:
    client, prompt = Audited(name), prompt_of(30, seed=1)
    client.ask(prompt)
    for scale, expected in ((1 + 2e-5, "match"), (1 + 2e-3, "mismatch"), (float("nan"), "mismatch")):
        client.ask(prompt)
        hit = client.engine.auditor._pending.pop()
        client.engine.auditor._pending.append(hit._replace(logits=hit.logits * scale))
        before = client.engine.counters()["plait_hit_audits_total"][f"result={expected}"]
        assert client.audit()[expected] == before + 1
        client.ask(prompt)
        client.engine.auditor._pending.clear()


@EACH
@pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlapped"])
def test_who_comes_while_an_audit_runs_waits_for_nothing_and_the_audit_begins_anew(name: str, overlap: bool) -> None:
    prompt, late = prompt_of(60, seed=1), prompt_of(30, seed=2)
    client, calm = Audited(name, overlap=overlap), Client(name, overlap=overlap)
    for each in (client, calm):
        each.ask(prompt)
        each.ask(prompt)
    for steps in (1, 2, 60, 120):  # Amid calibration, amid the run itself.
        for _ in range(steps):
            client.engine.audit()
        request, before = client.request((3 + steps, *late)), client.engine.steps
        client.load.add(request)
        assert client.engine.auditor.owned() == []
        client.engine.check()
        assert not client.engine.audit()
        client.finish()
        client.compare(request)
        before, calm_before = client.engine.steps - before, calm.engine.steps
        calm.ask((3 + steps, *late))
        assert before == calm.engine.steps - calm_before
    assert client.audit()["mismatch"] == 0
    assert client.audit()["match"] >= 1


def test_memory_of_an_audit_is_seen_in_the_gauges_and_comes_back() -> None:
    client, prompt = Audited("braid"), prompt_of(60, seed=1)
    client.ask(prompt)
    client.ask(prompt)
    idle = client.engine.gauges()["plait_pages"]["group=full_attention,use=running"]
    while not client.engine.auditor._rounding or client.engine.auditor.owned() == []:
        client.engine.audit()
    assert client.engine.gauges()["plait_pages"]["group=full_attention,use=running"] > idle
    client.audit()
    assert client.engine.gauges()["plait_pages"]["group=full_attention,use=running"] == idle


@pytest.mark.parametrize("name", ["granite", "gemma3"])
def test_where_memory_is_full_of_what_is_cached_the_least_of_it_goes(name: str) -> None:
    client = Audited(name, slabs={"granite": 30, "gemma3": 24}[name], interval=1000)
    for seed in range(12):
        client.ask(prompt_of(20, seed=seed))
    client.ask(prompt_of(20, seed=11))
    assert client.counted("plait_evictions_total") > 0
    assert client.audit()["match"] == 1


def test_only_the_latest_are_kept_when_no_idle_moment_comes() -> None:
    client, prompt = Audited("granite"), prompt_of(12, seed=1)
    client.ask(prompt)
    for _ in range(MOST_PENDING + 3):
        client.ask(prompt)
    assert client.audit() == {"match": MOST_PENDING, "mismatch": 0, "dropped": 3}


def test_what_is_gone_or_started_over_is_not_audited() -> None:
    client, prompt = Audited("granite", interval=1000, budget=4), prompt_of(30, seed=1)
    client.ask(prompt)
    request = client.request(prompt[:20] + prompt_of(20, seed=2))
    client.load.add(request)
    client.step()
    client.engine.abort(request.id)
    client.finish()
    point, ledger = client.match(prompt).best, client.engine.ledger
    assert point is not None
    assert point.checkpoint is not None
    group = next(group for group in ledger.groups if not group.paged)
    ledger.arena.units(group.unit_bytes)[point.checkpoint.slots[group.id][0], 3] ^= 1
    assert client.ask(prompt) == 4  # That restore was found untrue; it started over from where the other one stood.
    assert client.audit() == {"match": 1, "mismatch": 0, "dropped": 0}


def test_a_share_of_hits_is_audited_and_none_by_default() -> None:
    client, prompt = Audited("gemma3", audit_rate=0.3), prompt_of(12, seed=1)
    for _ in range(200):
        client.give(prompt, max_tokens=1)
        client.audit()
    assert 30 <= client.audit()["match"] <= 100
    engine = tiny_engine("gemma3", reuse=True)
    assert engine.runner.tap is None
    assert "plait_hit_audits_total" not in engine.counters()


def test_an_answer_is_the_same_with_audits_and_without() -> None:
    client = Audited("braid")
    request = ask("a", prompt_of(33, seed=4), greedy(9))
    for _ in range(3):
        client.give(request.prompt, max_tokens=9)
        client.audit()
        assert_same(client.load.answers[f"r{client._asked}", 0], oracle("braid", request)[0])


@pytest.mark.parametrize("rate", [-0.1, 1.5])
def test_a_rate_is_a_share(rate: float) -> None:
    with pytest.raises(ConfigError, match="audit_rate must be a share"):
        EngineConfig(model="x", audit_rate=rate)


def test_the_promise_cannot_be_turned_off_and_reuse_can() -> None:
    with pytest.raises(ConfigError, match="set prefix_reuse to false"):
        EngineConfig(model="x", require_state_complete=False)
    assert not EngineConfig(model="x", prefix_reuse=False).prefix_reuse
