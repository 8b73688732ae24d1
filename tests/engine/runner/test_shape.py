"""Steps that are padded to a shape compute what the step alone computes, and write nothing beside it."""

import pytest
from torch import Tensor

from plait_engine.engine import Engine
from plait_engine.runner.batch import StepBatch
from plait_engine.runner.graphs import Padding
from plait_engine.runner.padding_rows import PaddingRows
from plait_engine.runner.shape import PIECES, Shape, ladder, shape_of, shapes_with_pieces
from plait_engine.scheduler.step_plan import Row, StepPlan
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


def row(engine: Engine, tokens: int) -> Row:
    return PaddingRows(engine.runner, engine.ledger.reserved).row(tokens)


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
    assert shape_of(plan, 1, 100, 4) == Shape(0, PIECES, 64)
    assert shape_of(plan, 1, plan.tokens - 1, 4) is None
    crowd = StepPlan(plan.rows * (PIECES - 1))
    assert shape_of(crowd, 1, 1000, 4) is None


def test_a_shape_holds_its_step_and_is_one_of_those_that_are_captured_at_start() -> None:
    engine = tiny_engine("granite", max_seqs=20)
    captured = {pieces: set(shapes_with_pieces(1, pieces, 20)) for pieces in (70, 512)}
    for count in (0, 1, 8, 9, 19):
        for tokens in (1, 30, 64, 65, 70, 200, 512):
            rows = [row(engine, 1) for _ in range(count)] + [row(engine, tokens + 1)]
            for pieces, shapes in captured.items():
                shape = shape_of(StepPlan(tuple(rows)), 1, pieces, 20)
                assert (shape is None) == (tokens + 1 > pieces)
                if shape is not None:
                    assert shape in shapes
                    assert shape.decodes >= count
                    assert tokens < shape.tokens <= pieces
    assert len(shapes_with_pieces(1, 2048, 256)) == 50
