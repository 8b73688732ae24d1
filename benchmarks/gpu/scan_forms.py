"""Forms of a scan's longer pieces: each checked in a process of its own, then timed; or compiled without a GPU.

A kernel that hangs costs its process, not the run: it is ended after ``--seconds``. What is wrong is not timed. A check
compares outputs and states with the plain version, carried and emitted ones too, and asks for the same bits from a
repeated step, from a sequence alone, and from a step with room for more, as recorded ones have; what breaks such a
promise is named, and timed all the same.
"""

import argparse
import json
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.apart import in_process
from benchmarks.gpu.cases import OPS
from benchmarks.gpu.compiling import compile_only, instructions
from benchmarks.gpu.scan_steps import CaseOf, compare
from benchmarks.gpu.timing import seconds_each
from benchmarks.gpu.world import Part, World
from plait_kernels.tuning import tunables

Form = Mapping[str, Mapping[str, int]]
"""Configurations by tunable."""

LOADS = {
    "1x8192": (Part(0, 8192),),
    "8x1024": (Part(0, 1024),) * 8,
    "1x1024": (Part(0, 1024),),
    "2x128": (Part(0, 128),) * 2,
    "1x128": (Part(0, 128),),
}
DEVICE = torch.device("cuda")
LIMIT = 1.5e-2
MOST_WAITS, MOST_SPILLS = 40, 80
"""Of groups of products, and stores of spilled registers in the code. More waits are ptxas's, which then lets each
product wait for the one before."""


@contextmanager
def using(form: Form) -> Iterator[None]:
    with ExitStack() as stack:
        for name, config in form.items():
            stack.enter_context(tunables()[name].use(config))
        yield


@dataclass(frozen=True)
class Forms:
    """The ``module`` that is run, what it offers, the op at a model's shape, and what names of its kernels have in
    common."""

    module: str
    forms: Mapping[str, Form]
    case: CaseOf
    kernels: str

    def check(self, name: str) -> str:
        """JSON of [relative errors, promises]."""
        case = self.case("", LOADS["1x128"])
        with using(self.forms[name]):
            return json.dumps(compare(self.case, OPS[case.op], case.truth, DEVICE))

    def checked(self, names: list[str], seconds: float) -> Iterator[tuple[str, bool]]:
        """The forms that are right, and whether they keep all promises."""
        with ThreadPoolExecutor(max(1, len(names))) as pool:
            runs = pool.map(lambda name: in_process(self.module, "--check", name, seconds=seconds), names)
            for name, (out, failure) in zip(names, runs, strict=True):
                errors, promises = json.loads(out.splitlines()[-1]) if out and not failure else ({}, {})
                right = bool(errors) and all(value <= LIMIT for value in errors.values())
                broken = [promise for promise, kept in promises.items() if not kept]
                verdict = f"{'right' if right else 'WRONG'}{', BREAKS ' * bool(broken)}{', '.join(broken)}"
                print(f"{name:32} {verdict} {failure}", json.dumps(errors), flush=True)
                if right:
                    yield name, not broken

    def times(self, names: list[str]) -> Iterator[str]:
        """A line for each form and load: microseconds of the op, and of each of its kernels."""
        world = World(DEVICE)
        for label, parts in LOADS.items():
            case = self.case(label, parts)
            calls = [case.make(world) for _ in range(min(3, case.sets))]
            runs = [lambda case=case, call=call: case.run(call) for call in calls]  # type: ignore[misc]
            for name in names:
                with using(self.forms[name]):
                    yield f"{label:8} {name:32} {seconds_each(runs) * 1e6:8.1f} us  {self.by_kernel(runs)}"

    def by_kernel(self, runs: list[Any]) -> str:
        with profile(activities=[ProfilerActivity.CUDA]) as found:
            for run in runs:
                run()
            torch.cuda.synchronize()
        rows = [event for event in found.key_averages() if self.kernels in event.key]
        return ", ".join(f"{event.key} {event.self_device_time_total / event.count:.1f}" for event in rows)

    def compiled(self, names: list[str]) -> Iterator[str]:
        """What is wrong with the machine code of each form, compiled for a GPU that need not be there."""
        case = self.case("", LOADS["1x8192"])
        call = case.make(World(torch.device("cpu"), fill=False))
        for name in names:
            with compile_only(90) as found, using(self.forms[name]):
                case.run(call)
            yield from (f"{name}: {failure}" for failure in found.failures)
            for kernel in found.kernels:
                code = instructions(kernel["cubin"])
                counts = " ".join(f"{word} {code[word]}" for word in ("HGMMA", "WARPGROUP", "HMMA", "BAR", "STL"))
                print(f"{name:32} {kernel['name']:17} shared {kernel['shared']} {counts}", flush=True)
                if code["WARPGROUP"] > MOST_WAITS or code["STL"] > MOST_SPILLS:
                    yield f"{name} {kernel['name']}: products that wait for one another, or spilled registers"


def run(forms: Forms, description: str | None) -> int:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="part of the names of forms")
    parser.add_argument("--no-check", action="store_true", help="time only")
    parser.add_argument("--compile-only", action="store_true", help="compile, launch nothing")
    parser.add_argument("--seconds", type=float, default=40.0, help="of a check, compilation included")
    parser.add_argument("--check", help=argparse.SUPPRESS)
    parser.add_argument("--times", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.check is not None:
        print(forms.check(args.check))
        return 0
    if args.times is not None:
        for line in forms.times(json.loads(args.times)):
            print(line, flush=True)
        return 0
    names = [name for name in forms.forms if args.only in name]
    if not names:
        parser.error(f"no form has {args.only!r} in its name; there are: {', '.join(forms.forms)}")
    if args.compile_only:
        failures = list(forms.compiled(names))
        print(*failures, sep="\n")
        return 1 if failures else 0
    began = time.perf_counter()
    right = dict.fromkeys(names, True) if args.no_check else dict(forms.checked(names, args.seconds))
    print(f"checks took {time.perf_counter() - began:.0f} s")
    print(*in_process(forms.module, "--times", json.dumps(list(right)), seconds=60), flush=True)
    print(f"{time.perf_counter() - began:.0f} s")
    return 0 if list(right) == names and all(right.values()) else 1


def main(forms: Forms, description: str | None) -> None:
    """Ends the process; 2 where something broke on the way."""
    try:
        sys.exit(run(forms, description))
    except Exception:
        traceback.print_exc(limit=-4)
        sys.exit(2)
