"""What an answer says of the cache is what the cache did."""

import pytest

from plait_engine.engine import Engine
from plait_engine.request import CacheReport, Request
from tests.engine.tiny import KINDS, Load, ask, greedy, prompt_of, tiny_engine

LOOPS = pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlapped"])


def reports(engine: Engine, request: Request) -> list[CacheReport]:
    load, found = Load(engine), []
    load.add(request)
    while not engine.idle:
        found += [delta.cache for delta in load.step() if delta.cache is not None]
    return found


@LOOPS
@pytest.mark.parametrize("name", KINDS)
def test_a_prompt_is_reported_once_cold_and_warm(name: str, overlap: bool) -> None:
    engine = tiny_engine(name, reuse=True, overlap=overlap)
    prompt = prompt_of(30)
    (cold,) = reports(engine, ask("a", prompt, greedy(4), marks=(9, 21)))
    assert (cold.known, cold.effective, cold.reason) == (0, 0, "no_match")
    assert {9, 21} <= set(cold.checkpoints)
    (warm,) = reports(engine, ask("b", (*prompt[:25], *prompt_of(5, seed=9)), greedy(4)))
    assert warm.known == 25
    assert warm.effective == engine.stats.counters["plait_prefix_effective_hit_tokens_total"][""]
    assert 21 <= warm.effective <= 25
    assert warm.reason == ("no_checkpoint" if warm.effective < 25 else None)
    assert all(warm.effective < place < 30 for place in warm.checkpoints)


def test_why_nothing_was_known_is_reported() -> None:
    cases = {
        "bypass": (tiny_engine(reuse=False), ask("r", prompt_of(5))),
        "too_short": (tiny_engine(reuse=True), ask("r", prompt_of(1))),
        "no_match": (tiny_engine(reuse=True), ask("r", prompt_of(5))),
    }
    for reason, (engine, request) in cases.items():
        (report,) = reports(engine, request)
        assert (report.known, report.effective, report.reason) == (0, 0, reason)


def test_the_prompts_log_probabilities_bypass_the_cache() -> None:
    engine = tiny_engine(reuse=True)
    reports(engine, ask("a", prompt_of(20)))
    (report,) = reports(engine, ask("b", prompt_of(20), greedy(2, prompt_logprobs=1)))
    assert report.reason == "bypass"


def test_each_sequence_of_a_request_has_a_report() -> None:
    first, *others = reports(tiny_engine(reuse=True), ask("r", prompt_of(20), greedy(3), n=3))
    assert first.effective == 0
    assert [report.effective > 0 for report in others] == [True, True]
