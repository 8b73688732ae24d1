"""The drill passes on every kind of state, and fails where a check is missing."""

import pytest

from plait_engine import drill
from plait_engine.drill import DRILLS, drill_engine
from plait_engine.state import fetch, prefix_cache
from plait_engine.state.restore import Restore
from tests.engine.tiny import KINDS, tiny_engine


@pytest.mark.parametrize("name", ["braid", *KINDS])
def test_whatever_is_broken_the_answer_is_right_and_the_failure_counted_once(name: str) -> None:
    engine = tiny_engine(name, reuse=True)
    outcomes = list(drill_engine(engine))
    assert [outcome for outcome in outcomes if not outcome.passed] == []
    sound = {"nothing", "nothing, with the state in a tier"}
    assert {outcome.broken for outcome in outcomes} == {*sound, *(each.broken for each in DRILLS)}
    done = {outcome.state for outcome in outcomes if outcome.counted}
    assert done == {group.spec.kind for group in engine.ledger.groups}


def test_a_model_without_a_kind_of_state_says_so() -> None:
    outcomes = {outcome.broken: outcome for outcome in drill_engine(tiny_engine("gemma3", reuse=True))}
    assert outcomes["byte of the state flipped"].remark == "this model has no such state"


def test_the_drill_fails_where_nothing_is_checked_at_admission(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_cache, "find_flaw", lambda *_: None)
    stale = next(each for each in DRILLS if each.reason == "stale")
    done = drill.perform(tiny_engine("granite", reuse=True), stale, tiny_engine("granite").ledger.groups[-1])
    assert not done.passed


def test_the_drill_fails_where_what_a_tier_brings_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "flawed_group", lambda *_: None)
    flipped = next(each for each in DRILLS if each.broken == "byte flipped in the tier")
    engine = tiny_engine("gemma3", reuse=True)
    assert not drill.perform(engine, flipped, engine.ledger.groups[0]).passed


def test_the_drill_fails_where_bytes_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Restore, "verdict", lambda *_: None)
    flipped = next(each for each in DRILLS if each.reason == "checksum")
    engine = tiny_engine("granite", reuse=True)
    slot = next(group for group in engine.ledger.groups if not group.paged)
    assert not drill.perform(engine, flipped, slot).passed
