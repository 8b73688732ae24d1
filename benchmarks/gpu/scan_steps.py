"""Steps of a scan's longer pieces with all that a kernel must get right, and whether a form of it does."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.cases import Case
from benchmarks.gpu.world import Part, World
from plait_kernels.segments import Chunk, Room, Segments
from plait_kernels.storage import Slots

CUTS = 128
"""Rows of the chunk table end at multiples of this in their sequence, each with a state to emit."""

CaseOf = Callable[[str, tuple[Part, ...]], Case]
"""The op on longer pieces alone, by a label and what they bring."""


@dataclasses.dataclass(frozen=True)
class Step:
    """Arguments of the op for sequences of some tokens each, from states that ``view`` holds at ``slots.rows``."""

    inputs: tuple[Tensor, ...]
    options: dict[str, Any]
    view: Tensor
    slots: Slots
    segments: Segments

    @classmethod
    def random(cls, case_of: CaseOf, device: torch.device, decodes: int, news: tuple[int, ...]) -> "Step":
        """Behind the last sequence one without tokens, which tables of a step with room need."""
        world = World(device)
        segments = world.segments(decodes, 100, [*(Part(0, new) for new in news), Part(0, 0)])
        chunks = tuple(itertools.chain.from_iterable(map(cut, segments.chunks)))
        segments = dataclasses.replace(segments, chunks=chunks)
        call = case_of("", (Part(0, segments.tokens),)).make(world)
        *inputs, of_one, _, _ = call.args
        states = segments.sequences + len(chunks)
        _, (view,), slots = world.slots(states, (of_one.shape[1:], of_one.dtype))
        rows, emits = slots.rows[: segments.sequences], slots.rows[segments.sequences :]
        return cls(tuple(inputs), call.options, view, Slots(rows, emits), segments)

    @property
    def places(self) -> Tensor:
        emits = [] if self.slots.emits is None else [self.slots.emits]
        return torch.cat((self.slots.rows, *emits)).long()

    def run(self, op: Any, room: Room | None = None) -> tuple[Tensor, Tensor]:
        """(outputs, states and emitted states); the states are then put back."""
        before = self.view[self.places].clone()
        segments = dataclasses.replace(self.segments, room=room)
        out = op(*self.inputs, self.view, self.slots, segments, **self.options)
        after = self.view[self.places].clone()
        self.view[self.places] = before
        return out, after

    def alone(self, sequence: int) -> "Step":
        """One of the longer pieces without the others, and without emitted states."""
        start, end = self.segments.starts_host[sequence : sequence + 2]
        segments = World(self.view.device).segments(0, 0, [Part(0, end - start)])
        chunks = [chunk for chunk in self.segments.chunks if chunk.sequence == sequence]
        moved = tuple(Chunk(chunk.start - start, chunk.end - start, 0) for chunk in chunks)
        segments = dataclasses.replace(segments, chunks=moved)
        per_token = self.segments.tokens  # more than any other extent of an input
        inputs = tuple(u[start:end] if u.shape[0] == per_token else u for u in self.inputs)
        slots = Slots(self.slots.rows[sequence : sequence + 1])
        return dataclasses.replace(self, inputs=inputs, slots=slots, segments=segments)


def cut(chunk: Chunk) -> Iterator[Chunk]:
    for start in range(chunk.start, chunk.end, CUTS):
        yield Chunk(start, min(start + CUTS, chunk.end), chunk.sequence, emit=True)


def compare(case_of: CaseOf, op: Any, truth: Any, device: torch.device) -> tuple[dict[str, float], dict[str, bool]]:
    """Relative errors by what they are of, and which promises are kept to the bit."""
    torch.manual_seed(0)
    step = Step.random(case_of, device, 3, (300, 64, 1, 129, 7, 1000, 33))
    expected, states = step.run(truth)
    out, after = step.run(op)
    errors = {"outputs": error(out, expected), "states": max(map(error, after, states))}
    again, after_again = step.run(op)
    roomy, after_roomy = step.run(op, Room(len(step.segments.chunks) + 5, 2000))
    start, end = step.segments.starts_host[8:10]
    single, state = step.alone(8).run(op)
    return errors, {
        "again": torch.equal(out, again) and torch.equal(after, after_again),
        "room": torch.equal(out, roomy) and torch.equal(after, after_roomy),
        "alone": torch.equal(out[start:end], single) and torch.equal(after[8], state[0]),
    }


def error(seen: Tensor, truth: Tensor) -> float:
    """Relative; what is no number counts as infinity."""
    difference = (seen.double() - truth.double()).norm() / truth.double().norm()
    return float(difference.nan_to_num(float("inf")))
