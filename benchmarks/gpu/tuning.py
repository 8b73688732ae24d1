"""What tuning at the first start brings and costs: times of steps with the default configurations, with those that a
start found, and with those that are shipped for this GPU.

python -m benchmarks.gpu.tuning m1                # or m2, m3, or a model folder

Each is a process of its own. But for the last one the GPU has a name that nobody has measured, and the cache folder is
an empty one: "default" may not tune, "tuned" is the first start that may, "known" the second one.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from benchmarks.gpu.models import NAMES, write_model
from plait_engine.build import Built, build_engine
from plait_engine.config import EngineConfig, LoadFormat
from plait_engine.runner import tuning as of_engine
from plait_engine.runner.own_rows import OwnRows
from plait_engine.scheduler.step_plan import StepPlan
from plait_kernels import tuning

UNKNOWN = "a-gpu-that-nobody-has"
STARTS = ("default", "tuned", "known", "shipped")
STEPS = ((1, 1024, 1), (8, 1024, 1), (32, 1024, 1), (256, 1024, 1), (1, 0, 1024), (1, 0, 8192))
"""Sequences, tokens behind them, tokens of each."""


def built(name: str, model: str, cache: Path) -> Built:
    tuning.CACHE = cache
    if name != "shipped":
        for device in (torch.device("cuda"), torch.device("cuda", 0)):
            tuning._slugs[device] = UNKNOWN
    config = EngineConfig(
        model=model,
        device="cuda",
        dtype="bfloat16",
        load_format=LoadFormat.AUTO if any(Path(model).glob("*.safetensors")) else LoadFormat.RANDOM,
        max_model_len=9000,
        tune=name != "default",
    )
    began = time.perf_counter()
    engine = build_engine(config, lambda line: print(f"  {line}", flush=True) if line.startswith("t") else None)
    print(f"  started in {time.perf_counter() - began:.1f} s", flush=True)
    return engine


def milliseconds(engine: Built, repeats: int = 20) -> list[float]:
    """Of each step as it is served, median."""
    runner, limits = engine.engine.runner, engine.engine.scheduler.limits
    rows, found = OwnRows(runner, engine.engine.ledger), []
    for number, start, count in STEPS:
        with rows.rows(min(number, limits.max_seqs), start, count) as own:
            times = []
            for _ in range(repeats):
                torch.cuda.synchronize()
                began = time.perf_counter()
                runner.launch(StepPlan(tuple(own))).wait()
                times.append(time.perf_counter() - began)
        found.append(statistics.median(times[3:]) * 1e3)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help=f"a folder, or one of {', '.join(NAMES)}")
    parser.add_argument("--seconds", type=float, default=of_engine.SECONDS, help="that a start may try for")
    parser.add_argument("--starts", default=",".join(STARTS), help="some of them, in this order")
    parser.add_argument("--one", nargs=2, metavar=("START", "FOLDER"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    of_engine.SECONDS = args.seconds
    if args.one is not None:
        name, folder = args.one[0], Path(args.one[1])
        (folder / name).write_text(json.dumps(milliseconds(built(name, args.model, folder / "cache"))))
        return
    columns = {}
    with tempfile.TemporaryDirectory() as folder:
        model = str(Path(folder) / "model") if args.model in NAMES else args.model
        if args.model in NAMES:
            write_model(args.model, Path(model))
        for name in args.starts.split(","):
            print(name, flush=True)
            command = [sys.executable, "-m", "benchmarks.gpu.tuning", model, "--seconds", str(args.seconds)]
            subprocess.run([*command, "--one", name, folder], check=True)
            columns[name] = json.loads((Path(folder) / name).read_text())
    print(f"{'milliseconds':24}" + "".join(f"{name:>10}" for name in columns))
    for step, times in zip(STEPS, zip(*columns.values(), strict=True), strict=True):
        print(f"{step[0]} x {step[2]} behind {step[1]}".ljust(24) + "".join(f"{t:10.2f}" for t in times))


if __name__ == "__main__":
    main()
