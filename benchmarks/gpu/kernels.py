"""Every Triton kernel on this GPU: time, bandwidth or arithmetic against the ceilings, and error against its reference.

python -m benchmarks.gpu.kernels --out kernels.json                   # the table
python -m benchmarks.gpu.kernels --match ssd --no-check               # some of it
python -m benchmarks.gpu.kernels --sweep --store h200.json            # try configurations, keep the best
python -m benchmarks.gpu.kernels --compile-only                       # compile all of it; needs no GPU
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.cases import GROUPS, Call, Case
from benchmarks.gpu.compiling import compile_only
from benchmarks.gpu.timing import copy_bandwidth, product_rate, seconds_each
from benchmarks.gpu.world import World
from plait_kernels.tuning import Config, key_name, store, tunables


@dataclass(frozen=True)
class Ceilings:
    """Measured here: bytes each second of a copy, bf16 operations each second of a product."""

    bandwidth: float
    arithmetic: float

    def floor_seconds(self, case: Case) -> float:
        return max(case.n_bytes / self.bandwidth, case.flops / self.arithmetic)


def selected(groups: list[str], match: str) -> list[Case]:
    words = match.split(",") if match else [""]
    return [case for group in groups for case in GROUPS[group]() if any(word in case.name for word in words)]


class Check:
    """A call's truth, computed once; its state is put back after every run."""

    def __init__(self, case: Case, call: Call) -> None:
        self.case, self.call = case, call
        self.before = None if call.arena is None else call.arena.clone()
        self.expected = self._left(case.truth(*call.args, **call.options))

    def error(self) -> float:
        """Largest ``|seen - expected| / |expected|`` over outputs and states; infinite where a value is missing."""
        self._restore()
        seen = self._left(self.case.run(self.call))
        pairs = zip(seen, self.expected, strict=True)
        errors = [float((a - b).norm() / b.norm().clamp(min=1e-20)) for a, b in pairs]
        return max((error if error == error else float("inf") for error in errors), default=0.0)

    def _left(self, result: Any) -> list[Tensor]:
        """Outputs and state in fp32, and the memory as it was."""
        tensors = [t.float() for t in _tensors(result)]
        if self.call.state is not None:
            tensors.append(self.call.state().float().clone())
        self._restore()
        return tensors

    def _restore(self) -> None:
        if self.before is not None and self.call.arena is not None:
            self.call.arena.copy_(self.before)


def error_of(case: Case, world: World) -> float:
    return Check(case, case.make(world)).error()


def _tensors(result: Any) -> list[Tensor]:
    if isinstance(result, Tensor):
        return [result]
    if result is None:
        return []
    parts = result if isinstance(result, tuple) else vars(result).values()
    return [part for part in parts if isinstance(part, Tensor)]


def measure(case: Case, calls: list[Call]) -> float:
    return seconds_each([lambda call=call: case.run(call) for call in calls])  # type: ignore[misc]


def table(cases: list[Case], world: World, ceilings: Ceilings, check: bool) -> Iterator[dict[str, Any]]:
    for case in cases:
        try:
            error = error_of(case, world) if check else None
            seconds = measure(case, [case.make(world) for _ in range(case.sets)])
        except Exception as failure:
            yield {"name": case.name, "failed": f"{type(failure).__name__}: {failure}"[:500]}
            continue
        finally:
            torch.cuda.empty_cache()
        yield {
            "name": case.name,
            "us": seconds * 1e6,
            "TB/s": case.n_bytes / seconds / 1e12,
            "TFLOP/s": case.flops / seconds / 1e12,
            "of floor": ceilings.floor_seconds(case) / seconds,
            "error": error,
            "right": error is None or error <= case.limit,
        }


def print_row(row: dict[str, Any]) -> None:
    if "failed" in row:
        print(f"{row['name']:44} FAILED {row['failed'][:160]}")
        return
    error = "" if row["error"] is None else f"{row['error']:9.1e}"
    flag = "" if row["right"] else "  WRONG"
    rates = f"{row['TB/s']:6.2f} TB/s {row['TFLOP/s']:6.0f} TFLOP/s"
    print(f"{row['name']:44} {row['us']:9.1f} us {rates} {row['of floor']:5.0%} {error}{flag}", flush=True)


def compile_one(job: tuple[str, str, str, Config, int]) -> list[str]:
    """In a process of its own: what went wrong when a case was compiled with a configuration."""
    group, name, tunable, config, capability = job
    torch.set_num_threads(1)
    case = next(case for case in GROUPS[group]() if case.name == name)
    with compile_only(capability) as found, ExitStack() as stack:
        if tunable:
            stack.enter_context(tunables()[tunable].use(config))
        case.run(case.make(World(torch.device("cpu"), fill=False)))
    return [f"{name}: {failure}" for failure in found.failures]


def compile_all(jobs: list[tuple[str, str, str, Config, int]], processes: int) -> list[str]:
    """Compile side by side, into Triton's cache."""
    began = time.perf_counter()
    failures: list[str] = []
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for done, failed in enumerate(pool.map(compile_one, jobs, chunksize=4), 1):
            failures += failed
            if done % 100 == 0 or done == len(jobs):
                print(f"compiled {done} of {len(jobs)} in {time.perf_counter() - began:.0f} s", flush=True)
    return failures


def jobs_of(groups: list[str], match: str, capability: int, every: bool) -> list[tuple[str, str, str, Config, int]]:
    words = match.split(",") if match else [""]
    jobs: list[tuple[str, str, str, Config, int]] = []
    for group in groups:
        for case in GROUPS[group]():
            if any(word in case.name for word in words):
                jobs.append((group, case.name, "", {}, capability))
                if every:
                    jobs += [
                        (group, case.name, name, option, capability)
                        for name in case.tunables
                        for option in tunables()[name].options
                        if not option.get("LIBRARY")
                    ]
    return jobs


def sweep(cases: list[Case], world: World, deadline: float) -> dict[str, dict[str, Config]]:
    """The best configuration of each kernel and key; of a case with several kernels, one kernel after the other."""
    best: dict[str, dict[str, Config]] = {}
    for case in cases:
        chosen: dict[str, Config] = {}
        calls = [case.make(world) for _ in range(min(3, case.sets))]
        check = Check(case, calls[0])
        for name in case.tunables:
            tunable = tunables()[name]
            if time.perf_counter() > deadline:
                print("out of time; what was found so far is kept")
                return best
            with ExitStack() as stack:
                for other, config in chosen.items():
                    stack.enter_context(tunables()[other].use(config))
                found = [(_try(check, calls, name, option), option) for option in (tunable.default, *tunable.options)]
            seconds, config = min(found, key=lambda pair: pair[0])
            if seconds == float("inf"):
                print(f"{case.name:44} {name}: nothing works")
                continue
            chosen[name] = {**tunable.default, **config}
            best.setdefault(name, {})[key_name(tunable.last_key)] = chosen[name]
            print(f"{case.name:44} {name} {key_name(tunable.last_key)}: {seconds * 1e6:.1f} us "
                  f"(default {found[0][0] * 1e6:.1f}) {dict(chosen[name])}", flush=True)  # fmt: skip
        del check, calls
        torch.cuda.empty_cache()
    return best


def _try(check: Check, calls: list[Call], name: str, option: Config) -> float:
    """Seconds with this configuration; infinite if it does not run, or is wrong."""
    case = check.case
    try:
        with tunables()[name].use(option):
            return measure(case, calls) if check.error() <= case.limit else float("inf")
    except Exception as failure:
        if "out of resource" not in str(failure):
            print(f"{case.name} {name} {dict(option)}: {type(failure).__name__}: {str(failure)[:200]}")
        return float("inf")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", default=",".join(GROUPS), help="decode, linear, prefill")
    parser.add_argument("--match", default="", help="only cases whose name holds one of these words, comma-separated")
    parser.add_argument("--out", type=Path, help="write all numbers as JSON")
    parser.add_argument("--no-check", action="store_true", help="time only")
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--store", type=Path, help="table to write what a sweep finds to")
    parser.add_argument("--seconds", type=float, default=500.0, help="a sweep stops here")
    parser.add_argument("--compile-only", action="store_true", help="compile for --capability, launch nothing")
    parser.add_argument("--capability", type=int, default=90)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args()
    began = time.perf_counter()
    groups = args.groups.split(",")
    failures = compile_all(jobs_of(groups, args.match, args.capability, args.sweep), args.processes)
    for failure in failures:
        if not args.sweep or "shared memory" not in failure:
            print("COMPILE", failure[:1500])
    if args.compile_only:
        return 1 if failures else 0
    world, cases = World(torch.device("cuda")), selected(groups, args.match)
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    name = torch.cuda.get_device_name()
    if args.sweep:
        best = sweep(cases, world, began + args.seconds)
        if args.store is not None:
            store(args.store, name, best, f"benchmarks.gpu.kernels --sweep, torch {torch.__version__}")
        return 0
    ceilings = Ceilings(copy_bandwidth(), product_rate())
    torch.cuda.empty_cache()
    rows = []
    for row in table(cases, world, ceilings, not args.no_check):
        rows.append(row)
        print_row(row)
        if args.out is not None:
            args.out.write_text(json.dumps({"device": name, "ceilings": vars(ceilings), "rows": rows}, indent=1))
    wrong = [row["name"] for row in rows if "failed" in row or not row["right"]]
    print(f"{name}: copy {ceilings.bandwidth / 1e12:.2f} TB/s, bf16 product {ceilings.arithmetic / 1e12:.0f} TFLOP/s")
    print(f"{len(rows)} cases, wrong or failed: {wrong or 'none'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
