"""Steps that are padded to a shape compute what the step alone computes, and write nothing beside it."""

import pytest
from torch import Tensor

from plait_engine.engine import Engine
from plait_engine.runner.batch import StepBatch
from plait_engine.runner.graphs import Padding
from plait_engine.runner.shape import PIECES, Shape, ladder, shape_of
from plait_engine.scheduler.step_plan import StepPlan
from tests.engine.tiny import KINDS, ask, prompt_of, run, seeded, tiny_engine

LENGTHS = (1, 2, 5, 9, 17, 30)


def padded(engine: Engine, shapes: set[Shape]) -> Engine:
    """Every step that could be recorded runs in its shape, only without a recording."""
    graphs = engine.runner.graphs
    graphs.piece_tokens = 60

    def hidden(batch: StepBatch, shape: Shape, _padding: Padding) -> Tensor:
        shapes.add(shape)
        segments = batch.segments
        assert (segments.decodes, segments.sequences, segments.tokens) == (shape.decodes, shape.rows, shape.all_tokens)
        return engine.runner.model(batch)  # type: ignore[no-any-return]

    graphs.hidden = hidden  # type: ignore[method-assign]
    return engine


@pytest.mark.parametrize("name", [*KINDS, "braid"])
def test_answers_are_those_of_steps_as_they_are(name: str) -> None:
    requests = [ask(str(n), prompt_of(n, seed=n), seeded(6, seed=n)) for n in LENGTHS]
    shapes: set[Shape] = set()
    engine = padded(tiny_engine(name), shapes)
    expected = run(tiny_engine(name), *requests)
    for key, answer in run(engine, *requests).items():
        assert answer.tokens == expected[key].tokens
    assert any(shape.pieces for shape in shapes)
    assert any(shape.pieces and shape.decodes for shape in shapes)
    engine.check()


def test_decodes_climb_a_ladder_of_few_sizes() -> None:
    sizes = {ladder(rows) for rows in range(1, 257)}
    assert all(ladder(rows) >= rows for rows in range(1, 257))
    assert len(sizes) < 45
    assert all(ladder(rows) - rows < max(1, rows / 4) + 3 for rows in range(1, 257))


def test_what_has_no_room_runs_as_it_is() -> None:
    engine = tiny_engine("granite")
    engine.add(ask("a", prompt_of(9), seeded(2)))
    plan = engine.scheduler.schedule()
    assert shape_of(plan, 1, plan.tokens) == Shape(0, PIECES, 64)
    assert shape_of(plan, 1, plan.tokens - 1) is None
    crowd = StepPlan(plan.rows * (PIECES - 1))
    assert shape_of(crowd, 1, 1000) is None
