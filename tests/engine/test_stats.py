"""The engine's figures: right, bounded, and never in the way (CASES 51)."""

import pytest

from plait_engine.engine import Engine
from plait_engine.process import EngineProcess
from plait_engine.stats import STEP_BUCKETS, Stats
from tests.engine.tiny import Load, ask, check_against_oracle, greedy, prompt_of, run, tiny_engine


class Broken:
    """Raises whatever is asked of it."""

    def __getattribute__(self, name: str) -> object:
        raise RuntimeError("metrics are broken")

    def __getitem__(self, key: object) -> object:
        raise RuntimeError("metrics are broken")

    def __setitem__(self, key: object, value: object) -> None:
        raise RuntimeError("metrics are broken")


@pytest.mark.parametrize("part", ["counters", "gauges", "_histograms"])
def test_the_engine_goes_on_when_metrics_raise(part: str) -> None:
    engine = tiny_engine()
    setattr(engine.stats, part, Broken())
    requests = [ask(f"r{i}", prompt_of(5 + i), greedy(4)) for i in range(3)]
    check_against_oracle("granite", run(engine, *requests), requests)


@pytest.mark.parametrize("part", ["counters", "gauges", "_histograms"])
def test_the_engine_process_answers_when_metrics_raise(part: str, capfd: pytest.CaptureFixture[str]) -> None:
    engine = tiny_engine()
    Load(engine).add(ask("r", prompt_of(5)))
    setattr(engine.stats, part, Broken())
    process = EngineProcess("ipc://nobody", parent=0)
    try:
        stats = process._stats(engine)
    finally:
        process._socket.close(linger=0)
        process._context.term()
    assert (stats.running, stats.waiting) == (0, 1)
    assert "metrics are broken" in capfd.readouterr().err


def test_histograms_are_cumulative_and_end_with_count_and_sum() -> None:
    stats = Stats()
    for value in (0.0001, 0.0005, 0.0006, 100.0):
        stats.observe("plait_step_seconds", value, "phase=build")
    row = stats.histograms()["plait_step_seconds"]["phase=build"]
    assert len(row) == len(STEP_BUCKETS) + 2
    assert row[:3] == [2, 3, 3]
    assert row[-2:] == [4, pytest.approx(100.0012)]
    assert stats.all_bounds()["plait_step_seconds"] == list(STEP_BUCKETS)


def _taken(engine: Engine) -> float:
    return engine.gauges()["plait_arena_bytes"]["use=running"]


def test_gauges_follow_what_runs_and_waits_and_owns() -> None:
    engine = tiny_engine(max_seqs=2)
    at_rest = _taken(engine)
    load = Load(engine)
    load.add(*(ask(f"r{i}", prompt_of(5), greedy(4)) for i in range(3)))
    load.step()
    assert engine.gauges()["plait_requests"] == {"state=running": 2, "state=waiting": 1}
    assert _taken(engine) > at_rest
    load.finish()
    assert engine.gauges()["plait_requests"] == {"state=running": 0, "state=waiting": 0}
    assert _taken(engine) == at_rest
    assert 0 < engine.gauges()["plait_cache_utilization_ratio"][""] < 1


def test_counters_count_prompts_once_and_every_preemption() -> None:
    engine = tiny_engine(slabs=10)
    requests = [ask("old", prompt_of(9), greedy(24)), ask("young", prompt_of(7), greedy(24, logprobs=None), n=2)]
    run(engine, *requests)
    counters = engine.counters()
    assert counters["plait_prefix_lookup_tokens_total"] == {"": 16}
    assert counters["plait_preemptions_total"] == {
        "outcome=recomputed": engine.scheduler.preempted,
        "outcome=restored": 0,
    }
    assert engine.scheduler.preempted > 0
    assert engine.stats.histograms()["plait_queue_seconds"][""][-2] == 3
