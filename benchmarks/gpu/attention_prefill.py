"""Hopper's prefill attention on this GPU: every configuration checked in a process of its own, then timed.

python -m benchmarks.gpu.attention_prefill                 # all of M1, M2, M3 and M3's windows
python -m benchmarks.gpu.attention_prefill --models M1     # some of it
python -m benchmarks.gpu.attention_prefill --no-check      # times only
python -m benchmarks.gpu.attention_prefill --compile-only  # compile all of it; needs no GPU

A kernel that hangs costs its process, not the run: it is ended after ``--seconds``. What failed its check is not timed.
"""

import argparse
import json
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.apart import in_process
from benchmarks.gpu.cases import M1_ATTENTION, M2_ATTENTION, M3_FULL, M3_WINDOW, Attention, Call
from benchmarks.gpu.compiling import compile_only, instructions
from benchmarks.gpu.timing import seconds_each
from benchmarks.gpu.world import PAGE, Part, World
from plait_kernels.paged_attention import hopper, reference, triton
from plait_kernels.paged_attention.call import Call as Launch
from plait_kernels.paged_attention.triton_decode import run_decode
from plait_kernels.paged_attention.triton_store import run_store
from plait_kernels.tuning import Config

MODULE = "benchmarks.gpu.attention_prefill"
MODELS = {
    "M1": M1_ATTENTION,
    "M2": M2_ATTENTION,
    "M3": M3_FULL,
    "M3w": M3_WINDOW,
    "d128": Attention(32, 8, 128),
}
ODD = {
    "M1": Attention(5, 1, 256, window=70),
    "M2": Attention(6, 2, 64, window=70),
    "M3": Attention(3, 3, 256),
    "M3w": Attention(12, 2, 256, window=16),
    "d128": Attention(7, 7, 128),
}
"""Checked beside a model's own shape: groups that are no power of two, windows that end inside of pages."""
LOADS = {
    "1x8192": (Part(0, 8192),),
    "8x1024": (Part(0, 1024),) * 8,
    "8192 after 24576": (Part(24576, 8192),),
}
EDGES = {
    "short": (0, tuple(Part(0, n) for n in range(1, 16))),
    "short after some": (0, tuple(Part(37 * n, n) for n in range(1, 16))),
    "mixed": (3, (Part(13, 7), Part(100, 129), Part(0, 300), Part(1517, 64), Part(0, 1), Part(2047, 33))),
    "long": (0, (Part(1111, 1234),)),
    "whole tiles": (0, (Part(0, 2048), Part(1024, 128))),
}
LIMIT = 8e-3
MOST_SPILLS = 20
"""Stores of spilled registers in the code: of what is kept for the end, around the loop."""


def poison(call: Call) -> None:
    """NaN where no token may look: entries that were not reached, and those behind every window."""
    *_, k_view, v_view, pages, segments = call.args
    window = call.options["window"]
    for row, length in enumerate(segments.lengths_host):
        history = length - (segments.starts_host[row + 1] - segments.starts_host[row])
        first = 0 if window is None else max(0, history - window + 1)
        for view in (k_view, v_view):
            for number in range(first // PAGE):
                view[pages.table[row, number]] = float("nan")
            view[pages.table[row, first // PAGE], : first % PAGE] = float("nan")
            if length % PAGE:
                view[pages.table[row, length // PAGE], length % PAGE :] = float("nan")


def error_of(shape: Attention, decodes: int, parts: tuple[Part, ...], device: torch.device) -> float:
    """Largest relative error over tokens, so that one wrong row is not lost among right ones."""
    call = shape.case("", "", decodes, 50, parts).make(World(device))
    poison(call)
    arena, args = call.arena, call.args
    assert arena is not None
    before = arena.clone()
    expected = reference.paged_attention(*args, **call.options).float()
    kept = arena.clone()
    arena.copy_(before)
    launch = Launch(*args, call.options["scale"], call.options["window"], None, None, empty(args))
    run_store(launch)
    if decodes:
        run_decode(launch)
    hopper.run_prefill(launch)
    rows = (launch.out.float() - expected).flatten(1).norm(dim=1) / expected.flatten(1).norm(dim=1)
    same = torch.equal(arena, kept)
    return float(rows.nan_to_num(float("inf")).max()) if same else float("inf")


def empty(args: tuple[Any, ...]) -> Tensor:
    q, _, v = args[:3]
    return torch.full((*q.shape[:2], v.shape[2]), float("nan"), dtype=q.dtype, device=q.device)


def check(model: str, config: Config) -> dict[str, float]:
    """Errors by case."""
    torch.manual_seed(0)
    device = torch.device("cuda")
    errors = {}
    for name, shape in (("", MODELS[model]), ("odd ", ODD[model])):
        with hopper.TUNABLES[shape.dim].use(config):
            for edge, (decodes, parts) in EDGES.items():
                errors[name + edge] = error_of(shape, decodes, parts, device)
    return errors


def times(models: dict[str, list[Config]]) -> Iterator[str]:
    """A head for each model, and a line for each load: TFLOP/s of today's kernel and of each configuration."""
    world = World(torch.device("cuda"))
    for model, configs in models.items():
        shape = MODELS[model]
        tunable = hopper.TUNABLES[shape.dim]
        yield f"{'':24} {'today':>9} " + " ".join(f"{name_of(config):>9}" for config in configs)
        for label, parts in LOADS.items():
            case = shape.case(model, label, 0, 0, parts)
            calls = [case.make(world) for _ in range(2)]
            rates = [rate(triton.paged_attention, calls, case.flops)]
            for config in configs:
                with tunable.use(config):
                    rates.append(rate(hopper.paged_attention, calls, case.flops))
            yield f"{model:5} {label:18} " + " ".join(rates)
            del calls
            torch.cuda.empty_cache()


def rate(op: Any, calls: list[Call], flops: float) -> str:
    try:
        seconds = seconds_each([lambda call=call: op(*call.args, **call.options) for call in calls])  # type: ignore[misc]
    except Exception as failure:
        return f"{type(failure).__name__:>9.9}"
    return f"{flops / seconds / 1e12:9.0f}"


def checked(models: list[str], seconds: float, processes: int) -> dict[str, list[Config]]:
    """Configurations that are right, by model."""
    jobs = [(model, dict(config)) for model in models for config in hopper.TUNABLES[MODELS[model].dim].options]
    with ThreadPoolExecutor(processes) as pool:
        done = pool.map(lambda job: in_process(MODULE, "--check", json.dumps(job), seconds=seconds), jobs)
        right: dict[str, list[Config]] = {model: [] for model in models}
        for (model, config), (out, failure) in zip(jobs, done, strict=True):
            errors = json.loads(out.splitlines()[-1]) if out and not failure else {}
            wrong = {name: error for name, error in errors.items() if not error <= LIMIT}
            verdict = failure or (f"WRONG {wrong}" if wrong else f"right, {max(errors.values()):.1e}")
            print(f"{model:5} {name_of(config):12} {verdict}", flush=True)
            if errors and not wrong:
                right[model].append(config)
    return right


def compiled(models: list[str]) -> Iterator[str]:
    """What is wrong with the machine code of each configuration, compiled for a GPU that need not be there."""
    for model in models:
        shape = MODELS[model]
        call = shape.case(model, "", 0, 0, (Part(0, 8192),)).make(World(torch.device("cpu"), fill=False))
        for config in hopper.TUNABLES[shape.dim].options:
            with compile_only(90) as found, hopper.TUNABLES[shape.dim].use(config):
                hopper.paged_attention(*call.args, **call.options)
            yield from (f"{model} {name_of(config)}: {failure}" for failure in found.failures)
            code = Counter[str]()
            for kernel in found.kernels:
                if kernel["name"] == "prefill":
                    code += instructions(kernel["cubin"])
            print(f"{model:5} {name_of(config):12}", *(f"{name} {code[name]}" for name in ("HGMMA", "UTMALDG", "STL")))
            if not (code["HGMMA"] and code["UTMALDG"]) or code["STL"] > MOST_SPILLS:
                yield f"{model} {name_of(config)}: no wgmma, no copy engine, or spilled registers"


def name_of(config: Config) -> str:
    return "/".join(map(str, config.values()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="M1,M2,M3,M3w", help=", ".join(MODELS))
    parser.add_argument("--no-check", action="store_true", help="time only")
    parser.add_argument("--compile-only", action="store_true", help="compile, launch nothing")
    parser.add_argument("--seconds", type=float, default=40.0, help="of a check, compilation included")
    parser.add_argument("--processes", type=int, default=16, help="checks at a time")
    parser.add_argument("--check", help=argparse.SUPPRESS)
    parser.add_argument("--times", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.check is not None:
        print(json.dumps(check(*json.loads(args.check))))
        return 0
    if args.times is not None:
        for line in times(json.loads(args.times)):
            print(line, flush=True)
        return 0
    models = args.models.split(",")
    if args.compile_only:
        failures = list(compiled(models))
        print(*failures, sep="\n")
        return 1 if failures else 0
    began = time.perf_counter()
    options = {model: list(hopper.TUNABLES[MODELS[model].dim].options) for model in models}
    right = options if args.no_check else checked(models, args.seconds, args.processes)
    print(f"TFLOP/s by groups/keys/stages/turns; checks took {time.perf_counter() - began:.0f} s")
    print(*in_process(MODULE, "--times", json.dumps(right), seconds=120), flush=True)
    print(f"{time.perf_counter() - began:.0f} s")
    return 0 if all(right.values()) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Exception:
        traceback.print_exc(limit=-4)
        sys.exit(2)
