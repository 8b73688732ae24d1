"""Forms of the gated delta rule's longer pieces on this GPU: each checked in a process of its own, then timed.

python -m benchmarks.gpu.gdn_prefill                 # all forms
python -m benchmarks.gpu.gdn_prefill --only "64 "     # those whose name has this in it
python -m benchmarks.gpu.gdn_prefill --no-check      # times only
python -m benchmarks.gpu.gdn_prefill --compile-only  # compile all of it; needs no GPU

A kernel that hangs costs its process, not the run: it is ended after ``--seconds``. What failed its check is not timed.
A check compares outputs and states with the plain version, carried and emitted ones too, and asks for the same bits
from a repeated step, from a sequence alone, and from a step with room for more, as recorded ones have.
"""

import argparse
import dataclasses
import itertools
import json
import sys
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.apart import in_process
from benchmarks.gpu.cases import Delta
from benchmarks.gpu.compiling import compile_only, instructions
from benchmarks.gpu.timing import seconds_each
from benchmarks.gpu.world import Part, World
from plait_kernels.gated_delta_rule import reference
from plait_kernels.gated_delta_rule.triton import gated_delta_rule
from plait_kernels.segments import Chunk, Room, Segments
from plait_kernels.storage import Slots
from plait_kernels.tuning import tunables

Form = dict[str, dict[str, int]]
"""Configurations by tunable."""


def turned(block: int, warps: int, registers: int, v: int, stages: int) -> Form:
    """``registers`` of a thread at most while solving; fewer let more programs run at once."""
    return {
        "gdn_turned_block": {"BLOCK": block},
        "gdn_turned_solve": {"num_warps": warps, "maxnreg": registers, "num_stages": 2},
        "gdn_turned_scan": {"V": v, "num_warps": v // 16, "num_stages": stages},
    }


MODULE = "benchmarks.gpu.gdn_prefill"
FORMS = {
    "turned 64/4/168 64/3": turned(64, 4, 168, 64, 3),
    "turned 64/4/255 64/2": turned(64, 4, 255, 64, 2),
    "turned 64/4/168 128/3": turned(64, 4, 168, 128, 3),
    "turned 64/8/255 128/2": turned(64, 8, 255, 128, 2),
    "turned 32/4/128 64/3": turned(32, 4, 128, 64, 3),
    "turned 32/4/96 64/4": turned(32, 4, 96, 64, 4),
    "turned 32/2/255 128/3": turned(32, 2, 255, 128, 3),
}
"""By block/warps/registers of solving and values/warps or stages of the scan."""
LOADS = {
    "1x8192": (Part(0, 8192),),
    "8x1024": (Part(0, 1024),) * 8,
    "1x1024": (Part(0, 1024),),
    "2x128": (Part(0, 128),) * 2,
    "1x128": (Part(0, 128),),
}
SHAPE = Delta()
DEVICE = torch.device("cuda")
LIMIT = 1.5e-2
MOST_WAITS, MOST_SPILLS = 40, 80
"""Of groups of products, and stores of spilled registers in the code. More waits are ptxas's, which then lets each
product wait for the one before."""
CUTS = 128
"""Rows of the chunk table end at multiples of this in their sequence, each with a state to emit."""


@contextmanager
def using(form: Form) -> Iterator[None]:
    with ExitStack() as stack:
        for name, config in form.items():
            stack.enter_context(tunables()[name].use(config))
        yield


@dataclasses.dataclass(frozen=True)
class Step:
    """Inputs of the op for sequences of ``news`` tokens, from states that ``view`` holds at ``slots.rows``."""

    inputs: tuple[Tensor, ...]
    view: Tensor
    slots: Slots
    segments: Segments

    @classmethod
    def random(cls, decodes: int, news: tuple[int, ...]) -> "Step":
        """Behind the last sequence one without tokens, which tables of a step with room need."""
        world = World(DEVICE)
        segments = world.segments(decodes, 100, [*(Part(0, new) for new in news), Part(0, 0)])
        chunks = tuple(itertools.chain.from_iterable(map(cut, segments.chunks)))
        segments = dataclasses.replace(segments, chunks=chunks)
        states = segments.sequences + len(chunks)
        _, (view,), slots = world.slots(states, ((SHAPE.value_heads, SHAPE.dim, SHAPE.dim), torch.float32))
        rows, emits = slots.rows[: segments.sequences], slots.rows[segments.sequences :]
        call = SHAPE.rule("", 0, (Part(0, segments.tokens),), torch.float32).make(world)
        return cls(call.args[:7], view, Slots(rows, emits), segments)

    @property
    def places(self) -> Tensor:
        assert self.slots.emits is not None
        return torch.cat((self.slots.rows, self.slots.emits)).long()

    def run(self, op: Any, room: Room | None = None) -> tuple[Tensor, Tensor]:
        """(outputs, states and emitted states); the states are then put back."""
        before = self.view[self.places].clone()
        out = op(*self.inputs, self.view, self.slots, dataclasses.replace(self.segments, room=room))
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
        inputs = (*(u[start:end] for u in self.inputs[:5]), *self.inputs[5:])
        slots = Slots(self.slots.rows[sequence : sequence + 1], self.slots.emits[:0])  # type: ignore[index]
        return Step(inputs, self.view, slots, segments)


def cut(chunk: Chunk) -> Iterator[Chunk]:
    for start in range(chunk.start, chunk.end, CUTS):
        yield Chunk(start, min(start + CUTS, chunk.end), chunk.sequence, emit=True)


def check() -> dict[str, float]:
    """Relative errors by what they are of; a broken promise counts as infinity."""
    torch.manual_seed(0)
    step = Step.random(3, (300, 64, 1, 129, 7, 1000, 33))
    expected, states = step.run(reference.gated_delta_rule)
    out, after = step.run(gated_delta_rule)
    errors = {"outputs": error(out, expected), "states": max(map(error, after, states))}
    again, after_again = step.run(gated_delta_rule)
    roomy, after_roomy = step.run(gated_delta_rule, Room(len(step.segments.chunks) + 5, 2000))
    alone = step.alone(8)
    start, end = step.segments.starts_host[8:10]
    single, state = alone.run(lambda *args: gated_delta_rule(*args[:-2], Slots(alone.slots.rows), args[-1]))
    promises = {
        "again": torch.equal(out, again) and torch.equal(after, after_again),
        "room": torch.equal(out, roomy) and torch.equal(after, after_roomy),
        "alone": torch.equal(out[start:end], single) and torch.equal(after[8], state[0]),
    }
    return errors | {name: 0.0 if kept else float("inf") for name, kept in promises.items()}


def error(seen: Tensor, truth: Tensor) -> float:
    difference = (seen.double() - truth.double()).norm() / truth.double().norm()
    return float(difference.nan_to_num(float("inf")))


def times(names: list[str]) -> Iterator[str]:
    """A line for each form and load: microseconds of the op, and of each of its kernels."""
    world = World(DEVICE)
    for label, parts in LOADS.items():
        case = SHAPE.rule(label, 0, parts, torch.float32)
        calls = [case.make(world) for _ in range(min(3, case.sets))]
        runs = [lambda call=call: gated_delta_rule(*call.args) for call in calls]  # type: ignore[misc]
        for name in names:
            with using(FORMS[name]):
                yield f"{label:8} {name:24} {seconds_each(runs) * 1e6:8.1f} us  {by_kernel(runs)}"


def by_kernel(runs: list[Any]) -> str:
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for run in runs:
            run()
        torch.cuda.synchronize()
    rows = [event for event in found.key_averages() if "gdn" in event.key]
    return ", ".join(f"{event.key} {event.self_device_time_total / event.count:.1f}" for event in rows)


def checked(names: list[str], seconds: float) -> list[str]:
    """The forms that are right."""
    right = []
    with ThreadPoolExecutor(len(names)) as pool:
        for name, (out, failure) in zip(
            names, pool.map(lambda name: in_process(MODULE, "--check", name, seconds=seconds), names), strict=True
        ):
            errors = json.loads(out.splitlines()[-1]) if out and not failure else {}
            fine = errors and all(value <= LIMIT for value in errors.values())
            print(f"{name:24} {'right' if fine else 'WRONG'} {failure}", json.dumps(errors), flush=True)
            right.extend([name] if fine else [])
    return right


def compiled(names: list[str]) -> Iterator[str]:
    """What is wrong with the machine code of each form, compiled for a GPU that need not be there."""
    call = SHAPE.rule("", 0, LOADS["1x8192"], torch.float32).make(World(torch.device("cpu"), fill=False))
    for name in names:
        with compile_only(90) as found, using(FORMS[name]):
            gated_delta_rule(*call.args)
        yield from (f"{name}: {failure}" for failure in found.failures)
        for kernel in found.kernels:
            code = instructions(kernel["cubin"])
            counts = " ".join(f"{word} {code[word]}" for word in ("HGMMA", "WARPGROUP", "HMMA", "BAR", "STL"))
            print(f"{name:24} {kernel['name']:17} shared {kernel['shared']} {counts}", flush=True)
            if code["WARPGROUP"] > MOST_WAITS or code["STL"] > MOST_SPILLS:
                yield f"{name} {kernel['name']}: products that wait for one another, or spilled registers"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="part of the names of forms")
    parser.add_argument("--no-check", action="store_true", help="time only")
    parser.add_argument("--compile-only", action="store_true", help="compile, launch nothing")
    parser.add_argument("--seconds", type=float, default=40.0, help="of a check, compilation included")
    parser.add_argument("--check", help=argparse.SUPPRESS)
    parser.add_argument("--times", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.check is not None:
        with using(FORMS[args.check]):
            print(json.dumps(check()))
        return 0
    if args.times is not None:
        for line in times(json.loads(args.times)):
            print(line, flush=True)
        return 0
    names = [name for name in FORMS if args.only in name]
    if args.compile_only:
        failures = list(compiled(names))
        print(*failures, sep="\n")
        return 1 if failures else 0
    began = time.perf_counter()
    right = names if args.no_check else checked(names, args.seconds)
    print(f"checks took {time.perf_counter() - began:.0f} s")
    print(*in_process(MODULE, "--times", json.dumps(right), seconds=60), flush=True)
    print(f"{time.perf_counter() - began:.0f} s")
    return 0 if right == names else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Exception:
        traceback.print_exc(limit=-4)
        sys.exit(2)
