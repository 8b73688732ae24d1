"""Recorded decode steps give what the step itself gives, and nothing is recorded that could give anything else."""

import copy
import dataclasses
from collections.abc import Callable, Iterator

import msgspec
import pytest
import torch

from plait_engine.engine import Engine
from plait_engine.models.base import bind_states
from plait_engine.runner.batch import SlotTable
from plait_engine.runner.shape import Shape, ladder
from plait_engine.state.arena import Arena
from plait_kernels.select import Kernels, select
from tests.engine.tiny import CPU, KINDS, Load, ask, prompt_of, run, seeded, tiny_engine


@pytest.fixture(scope="module")
def compiled() -> Iterator[Kernels]:
    kernels = select(CPU, torch.float32)
    kernels.wait()
    if not kernels.compiled:
        pytest.skip(f"no compiled kernels here: {kernels.choices['linear'].reason}")
    yield kernels
    kernels.close()


def engine_with(kernels: Kernels, name: str, *, recorded: bool) -> Engine:
    engine = tiny_engine(name, padding=1)
    runner = engine.runner
    runner.kernels = runner.graphs.kernels = runner.sampler.kernels = kernels
    runner.model.build = type(runner.model.build)(torch.float32, torch.float32, kernels)
    for module in runner.model.modules():
        if hasattr(module, "kernels"):
            module.kernels = kernels
        if hasattr(module, "build"):
            module.build = runner.model.build
    if not recorded:
        runner.graphs.shape = lambda plan: None  # type: ignore[method-assign]  # noqa: ARG005
    return engine


@pytest.mark.parametrize("name", [*KINDS, "braid"])
def test_a_replayed_step_is_the_same_to_the_bit(name: str, compiled: Kernels) -> None:
    requests = [ask(str(n), prompt_of(n), seeded(9, seed=n)) for n in (1, 2, 5, 9, 17, 30)]
    replayed, plain = (run(engine_with(compiled, name, recorded=recorded), *requests) for recorded in (True, False))
    for key, answer in replayed.items():
        assert answer.tokens == plain[key].tokens
        assert torch.equal(answer.logprobs, plain[key].logprobs)


def test_every_number_of_rows_has_a_recording_of_its_own(compiled: Kernels) -> None:
    engine = engine_with(compiled, "granite", recorded=True)
    load = Load(engine)
    load.add(*(ask(str(n), prompt_of(3, seed=n), seeded(4 + 2 * n)) for n in range(3)))
    load.finish()
    graphs = engine.runner.graphs._recorded
    assert {Shape(1), Shape(2), Shape(3)} >= graphs.keys() >= {Shape(1), Shape(2)}
    assert all(graph is not None for graph in graphs.values())
    engine.runner.graphs.forget()
    assert not engine.runner.graphs._recorded


def test_recording_moves_nobodys_state(compiled: Kernels) -> None:
    engine = engine_with(compiled, "braid", recorded=True)
    load = Load(engine)
    load.add(ask("a", prompt_of(7), seeded(20)))
    for _ in range(3):
        load.step()
    before = engine.ledger.arena.bytes.clone()
    engine.runner.graphs.forget()
    engine.runner.graphs.prepare(Shape(1), engine.runner.builder.only_padding)
    changed = (engine.ledger.arena.bytes != before).nonzero().flatten()
    reserved = {
        byte // 256
        for group, units in engine.ledger.reserved.items()
        for unit in units
        for byte in range(unit * 256, unit * 256 + engine.ledger.groups[group].unit_bytes, 256)
    }
    assert set((changed // 256).tolist()) <= reserved
    load.finish()


def test_a_step_that_looks_at_values_runs_as_it_is(compiled: Kernels) -> None:
    engine = engine_with(compiled, "granite_moe", recorded=True)
    run(engine, ask("a", prompt_of(5), seeded(5)))
    assert set(engine.runner.graphs._recorded.values()) == {None}


def test_without_compiled_kernels_nothing_is_recorded() -> None:
    engine = tiny_engine("granite", padding=1)
    run(engine, ask("a", prompt_of(5), seeded(5)))
    assert set(engine.runner.graphs._recorded.values()) == {None}


def upgrade(engine: Engine) -> None:
    """As ``Kernels.upgrade`` does, and nobody says so."""
    engine.runner.graphs.kernels.generation += 1


def replace_kernels(engine: Engine) -> None:
    engine.runner.graphs.kernels = Kernels()


def move_states(engine: Engine) -> None:
    model, arena = engine.runner.model, engine.ledger.arena
    model.bind(bind_states(model.plan, Arena(arena.n_bytes, CPU)))


def move_desk(engine: Engine) -> None:
    graphs = engine.runner.graphs
    graphs._desk = None
    assert graphs.prepare(Shape(3), engine.runner.builder.only_padding)


@pytest.mark.parametrize("change", [upgrade, replace_kernels, move_states, move_desk])
@torch.inference_mode()
def test_a_recording_is_dropped_once_something_it_was_made_with_is_another(
    change: Callable[[Engine], None], compiled: Kernels, caplog: pytest.LogCaptureFixture
) -> None:
    engine = engine_with(copy.copy(compiled), "braid", recorded=True)
    graphs, padding = engine.runner.graphs, engine.runner.builder.only_padding
    assert graphs.prepare(Shape(1), padding)
    for _ in range(2):
        assert graphs.hidden(padding(Shape(2)), Shape(2), padding) is not None
    assert not caplog.records
    change(engine)
    before = engine.ledger.arena.bytes.clone()
    assert graphs.hidden(padding(Shape(2)), Shape(2), padding) is None
    assert "dropped" in caplog.text
    assert torch.equal(engine.ledger.arena.bytes, before)
    assert not graphs._recorded


def test_a_dropped_recording_is_made_again(compiled: Kernels) -> None:
    engine, plain = (engine_with(copy.copy(compiled), "braid", recorded=recorded) for recorded in (True, False))
    requests = [ask(str(n), prompt_of(n), seeded(9, seed=n)) for n in (2, 9, 17)]
    run(engine, *requests)
    old = dict(engine.runner.graphs._recorded)
    upgrade(engine)
    answers = [
        run(either, *(msgspec.structs.replace(request, id=f"again {request.id}") for request in requests))
        for either in (engine, plain)
    ]
    for key, answer in answers[0].items():
        assert torch.equal(answer.logprobs, answers[1][key].logprobs)
    fresh = engine.runner.graphs._recorded
    assert fresh
    assert all(recording is not old.get(shape) for shape, recording in fresh.items())


@torch.inference_mode()
def test_tensors_of_other_sizes_are_refused_rather_than_spread_over_the_recorded_ones(compiled: Kernels) -> None:
    engine = engine_with(compiled, "braid", recorded=True)
    graphs, padding = engine.runner.graphs, engine.runner.builder.only_padding
    assert graphs.prepare(Shape(2), padding)
    recorded, whole = graphs._recorded[Shape(2)], padding(Shape(2))
    assert recorded is not None
    recorded.lay(whole)
    short_slots = tuple(SlotTable(g.rows[:, :1]) if isinstance(g, SlotTable) else g for g in whole.groups)
    for wrong in ({"token_ids": whole.token_ids[:1]}, {"groups": short_slots}):
        with pytest.raises(ValueError, match="a recorded step has"):
            recorded.lay(dataclasses.replace(whole, **wrong))  # type: ignore[arg-type]


def test_the_ladder_has_few_steps_and_wastes_little() -> None:
    sizes = {ladder(n) for n in range(1, 65)}
    assert len(sizes) <= 20
    assert all(n <= ladder(n) < n + 8 for n in range(1, 65))
    assert all(ladder(n) == n for n in range(1, 9))
