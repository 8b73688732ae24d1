"""A profile adds up, leaves the engine as it was, and refuses what does not fit."""

import json
from pathlib import Path

import pytest

from plait_engine.config import EngineConfig
from plait_engine.demo_model import DEMO_FOLDER
from plait_engine.profiling.ceilings import Ceilings, least_of
from plait_engine.profiling.load import BadLoad, ProfileLoad
from plait_engine.profiling.parts import measuring
from plait_engine.profiling.profile import profile_model
from tests.engine.tiny import ask, prompt_of, run, seeded, tiny_engine

DECODE, PREFILL = ProfileLoad("decode", 2, 9), ProfileLoad("prefill", 1, 20)


def test_loads_are_written_as_they_are_read() -> None:
    for load in (DECODE, PREFILL, ProfileLoad("decode", 32, 1024)):
        assert ProfileLoad.parse(str(load)) == load


@pytest.mark.parametrize(
    "text", ["", "decode", "decode:0x9", "prefill:3x0", "train:1x1", "decode:1x2x3", "decode:-1x5"]
)
def test_what_is_no_load_is_refused_with_how_to_write_one(text: str) -> None:
    with pytest.raises(BadLoad, match="decode:32x1024"):
        ProfileLoad.parse(text)


def test_a_load_that_does_not_fit_is_refused() -> None:
    engine = tiny_engine("granite")
    limits = engine.scheduler.limits
    with pytest.raises(BadLoad, match="sequences run at a time"):
        ProfileLoad("decode", limits.max_seqs + 1, 5).refuse(engine)
    with pytest.raises(BadLoad, match="tokens here"):
        ProfileLoad("decode", 1, limits.max_model_len).refuse(engine)


@pytest.mark.parametrize("load", [DECODE, PREFILL], ids=str)
def test_parts_are_those_of_the_load_and_the_engine_is_as_before(load: ProfileLoad) -> None:
    engine = tiny_engine("granite")
    before = run(tiny_engine("granite"), ask("a", prompt_of(7), seeded(5)))
    kernels = dict(vars(engine.runner.kernels))
    with load.running(engine, 0) as step, measuring(engine.runner) as parts:
        steps = len(step(3))
    found = parts.seconds()
    assert found["layer linear_attention"][1] == 3 * steps
    assert found["layer full_attention"][1] == steps
    assert found["op ssd"][1] == 3 * steps
    layers = sum(seconds for name, (seconds, _) in found.items() if name.startswith("layer"))
    assert layers > found["op ssd"][0] > 0
    assert dict(vars(engine.runner.kernels)) == kernels
    assert engine.idle
    assert run(engine, ask("a", prompt_of(7), seeded(5))).keys() == before.keys()
    engine.check()


def test_the_least_that_a_step_moves_is_weights_states_and_history() -> None:
    engine = tiny_engine("braid")
    one, two = (least_of(engine, ProfileLoad("decode", n, 40)) for n in (1, 2))
    weights = engine.runner.model.weights_bytes
    groups = engine.ledger.groups
    slots = sum(2 * g.unit_bytes * g.units_per_slot for g in groups if not g.paged)
    assert two.n_bytes - one.n_bytes == one.n_bytes - weights > slots
    longer = least_of(engine, ProfileLoad("decode", 1, 80))
    full = sum(g.unit_bytes * 40 // g.page_size for g in groups if g.full)
    assert longer.n_bytes - one.n_bytes == full  # a window does not grow
    assert one.seconds(Ceilings(1e9, 1e30)) == one.n_bytes / 1e9


@pytest.fixture(scope="module")
def config() -> EngineConfig:
    return EngineConfig(model=str(DEMO_FOLDER), device="cpu", memory_bytes=256 << 20, max_model_len=1024)


def test_the_demo_is_profiled_with_a_trace(config: EngineConfig, tmp_path: Path) -> None:
    told: list[str] = []
    result = profile_model(config, [ProfileLoad("decode", 1, 40)], tmp_path / "trace.json", told.append)
    (of,) = result.loads
    assert 0 < of.host < of.step
    assert {"op linear", "op ssd", "layer full_attention"} <= of.parts.keys()
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert any("profiling decode:1x40" in line for line in told)
