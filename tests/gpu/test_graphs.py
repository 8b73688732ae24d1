"""Steps with recordings and without agree to the bit at equal padded size: answers, and every byte of state.

Without, a step calls the model again on the very tensors that its recording reads (``Replay.AGAIN``), so batches have
the same rows, the same tokens and equally wide page tables. That such steps are right is what ORACLE tests are for.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec
import pytest
import torch
from torch import Tensor

from plait_engine.engine import Engine
from plait_engine.request import Request
from plait_engine.runner.batch import SlotTable, StepBatch
from plait_engine.runner.graphs import Padding
from plait_engine.runner.shape import Shape, ladder
from plait_engine.state.spec import GRANULE_BYTES
from tests.engine.rig import Replay, Rig
from tests.engine.tiny import KINDS, Load, ask, prompt_of, seeded, tiny_engine
from tests.gpu.rigs import COMPILED, TRITON, in_bf16, on_cpu, on_gpu

MOST = 12
"""Sequences at once."""
INTERVAL = 5
"""Tokens between checkpoints: shorter than a piece of a prompt, so that pieces leave some on the way."""


@dataclass
class Steps:
    """What recordings were asked for, in order: the shape, and how many checkpoints the step leaves."""

    shapes: list[Shape]
    emits: list[int]

    @classmethod
    def of(cls, engine: Engine) -> "Steps":
        steps, hidden = cls([], []), engine.runner.graphs.hidden

        def noted(batch: StepBatch, shape: Shape, padding: Padding) -> Tensor | None:
            tables = [group for group in batch.groups if isinstance(group, SlotTable)]
            steps.shapes.append(shape)
            steps.emits.append(max((int((t.emits >= 0).sum()) for t in tables if t.emits is not None), default=0))
            return hidden(batch, shape, padding)

        engine.runner.graphs.hidden = noted  # type: ignore[method-assign]
        return steps


def engine_of(name: str, rig: Rig) -> Engine:
    """Its clock counts looks at it, so that two engines evict the same."""
    engine = tiny_engine(name, max_seqs=MOST, budget=40, padding=1, reuse=True, interval=INTERVAL, rig=rig)
    ticks = itertools.count()
    engine.scheduler.cache.tree.now = lambda: float(next(ticks))
    return engine


def owned_bytes(engine: Engine) -> Tensor:
    """The arena without the padding rows' units: recording itself moves those."""
    units = engine.ledger.arena.bytes.view(-1, GRANULE_BYTES).clone()
    for group, reserved in engine.ledger.reserved.items():
        for unit in reserved:
            units[unit : unit + engine.ledger.groups[group].unit_bytes // GRANULE_BYTES] = 0
    return units


def requests() -> list[Request]:
    """From one sequence to ``MOST`` and back to none; a second half whose prompts go on where the first ones ended."""
    return [ask(f"r{i}", prompt_of(4 + 3 * i, seed=i % 4), seeded(22 + 2 * i, seed=i)) for i in range(MOST)]


def in_step(one: Engine, other: Engine, load: list[Request], each: Callable[[], None]) -> None:
    """Both engines get a request every second step; deltas are compared, and ``each`` is called after every step."""
    loads = [Load(engine) for engine in (one, other)]
    waiting = list(load)
    while waiting or not one.idle:
        if waiting and loads[0].steps % 2 == 0:
            request = waiting.pop(0)
            for half in loads:
                half.add(request)
        first, second = (half.step() for half in loads)
        assert first == second, f"step {loads[0].steps}"
        each()
    assert other.idle


RIGS = [*on_cpu(COMPILED), *on_gpu(TRITON, in_bf16(TRITON), replace(TRITON, piece_tokens=0))]


@pytest.mark.parametrize("rig", RIGS)
@pytest.mark.parametrize("name", [*KINDS, "braid"])
def test_replaying_a_step_and_making_it_again_agree_to_the_bit(name: str, rig: Rig) -> None:
    replayed, again = engine_of(name, rig), engine_of(name, replace(rig, replay=Replay.AGAIN))
    steps = Steps.of(replayed)

    def compare() -> None:
        assert torch.equal(owned_bytes(replayed), owned_bytes(again)), f"in {steps.shapes[-1]}"

    in_step(
        replayed, again, [*requests(), *(msgspec.structs.replace(r, id=f"again {r.id}") for r in requests())], compare
    )
    recorded = replayed.runner.graphs._recorded
    assert all(recording is not None for recording in recorded.values())
    assert {shape.decodes for shape in recorded if not shape.pieces} == {ladder(n) for n in range(1, MOST + 1)}
    assert any(shape.pieces for shape in recorded) == bool(rig.piece_tokens)
    if rig.piece_tokens and name != "gemma3":  # which has nothing to write into a checkpoint
        assert any(emits for shape, emits in zip(steps.shapes, steps.emits, strict=True) if shape.pieces)


@pytest.mark.parametrize("rig", RIGS)
def test_a_recording_serves_one_shape_and_the_kernels_that_it_was_made_with(rig: Rig) -> None:
    engine = engine_of("braid", rig)
    steps, graphs = Steps.of(engine), engine.runner.graphs
    load = Load(engine)
    load.add(*requests())
    load.finish()
    made = {shape: recording for shape, recording in graphs._recorded.items() if recording is not None}
    assert made.keys() == set(steps.shapes)
    for shape, recording in made.items():
        assert (recording.batch.segments.decodes, len(recording.batch.token_ids)) == (shape.decodes, shape.all_tokens)
    small, large = sorted((s for s in made if not s.pieces), key=lambda s: s.decodes)[:2]
    with pytest.raises(ValueError, match="a recorded step has"):
        made[small].lay(engine.runner.builder.only_padding(large))
    graphs.forget()  # as ``ModelRunner.upgrade_kernels`` does
    load.add(ask("later", prompt_of(9), seeded(5)))
    load.finish()
    assert all(recording is not made.get(shape) for shape, recording in graphs._recorded.items())
