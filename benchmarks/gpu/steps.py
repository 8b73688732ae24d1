"""Where the time of a step goes: ``python -m benchmarks.gpu.steps --model m1 --rows 1,32,256``.

Runs the engine in this process: decodes of so many sequences behind prompts of 1,024 tokens, and prompts alone. Prints
the time of a step, the host's share of it, and each kernel's part of the device's time.
"""

import argparse
import random
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.models import write_model
from plait_engine.build import build_engine
from plait_engine.config import EngineConfig, LoadFormat
from plait_engine.engine import Engine
from plait_engine.request import Request, SamplingParams

STEPS = 60


def request(name: str, tokens: int, vocab: int, output: int) -> Request:
    prompt = tuple(random.Random(name).choices(range(vocab), k=tokens))
    return Request(id=name, prompt=prompt, sampling=SamplingParams(temperature=0, max_tokens=output, ignore_eos=True))


def until_decoding(engine: Engine, rows: int, vocab: int, tag: str) -> None:
    for i in range(rows):
        engine.add(request(f"{tag} {i}", 1024, vocab, 4000))
    while any(s.remaining > 1 for s in engine.scheduler.running) or len(engine.scheduler.running) < rows:
        engine.step()
    for _ in range(4):
        engine.step()


def steps(engine: Engine, count: int) -> list[float]:
    """Seconds of each step, with the loop as the server runs it."""
    seconds = []
    for _ in range(count):
        started = time.perf_counter()
        engine.step()
        seconds.append(time.perf_counter() - started)
    return seconds


def kernels(engine: Engine, count: int) -> dict[str, tuple[float, int]]:
    """Device seconds and launches of a step, by kernel."""
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as seen:
        for _ in range(count):
            engine.step()
        torch.cuda.synchronize()
    found: dict[str, tuple[float, int]] = defaultdict(lambda: (0.0, 0))
    for event in seen.key_averages():
        spent = float(event.self_device_time_total)
        if spent and event.device_type == torch.autograd.DeviceType.CUDA:
            before = found[event.key]
            found[event.key] = (before[0] + spent / 1e6 / count, before[1] + round(event.count / count))
    return found


def report(title: str, seconds: list[float], found: dict[str, tuple[float, int]]) -> None:
    total = sum(spent for spent, _ in found.values())
    print(f"\n{title}: step {1e3 * statistics.median(seconds):.2f} ms, device busy {1e3 * total:.2f} ms", flush=True)
    for name, (spent, launches) in sorted(found.items(), key=lambda item: -item[1][0])[:22]:
        print(f"  {1e6 * spent:9.1f} us {launches:5d} x  {name[:90]}")


def host_share(engine: Engine, count: int) -> None:
    """What the host does of a step, in milliseconds, when it need not wait: the plain loop's parts."""
    spent: dict[str, list[float]] = defaultdict(list)
    for _ in range(count):
        t0 = time.perf_counter()
        plan = engine.scheduler.schedule()
        t1 = time.perf_counter()
        launched = engine.runner.launch(plan)
        t2 = time.perf_counter()
        torch.cuda.synchronize()
        t3 = time.perf_counter()
        engine._commit(launched)
        t4 = time.perf_counter()
        parts = {"schedule": t1 - t0, "build": launched.planned_seconds, "launch": t2 - t1, "device": t3 - t2}
        for name, seconds in {**parts, "commit": t4 - t3}.items():
            spent[name].append(seconds)
    print(
        "  host: " + ", ".join(f"{name} {1e3 * statistics.median(v):.2f} ms" for name, v in spent.items()), flush=True
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="m1")
    parser.add_argument("--rows", default="1,32,256")
    parser.add_argument("--prompts", default="1x1024,8x1024,1x8192", help="sequences x tokens of a step of prompts")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        config = write_model(options.model, Path(scratch))
        vocab = int(str(config["vocab_size"]))
        started = time.perf_counter()
        built = build_engine(EngineConfig(model=scratch, load_format=LoadFormat.RANDOM, prefix_reuse=False))
        print(f"built in {time.perf_counter() - started:.1f} s", flush=True)
        engine = built.engine
        for rows in map(int, filter(None, options.rows.split(","))):
            until_decoding(engine, rows, vocab, f"rows {rows}")
            seconds = steps(engine, STEPS)
            report(f"{options.model} decode of {rows}", seconds, kernels(engine, 5))
            engine.step()
            _finish_flight(engine)
            host_share(engine, 12)
            for i in range(rows):
                engine.abort(f"rows {rows} {i}")
            _finish_flight(engine)
        for shape in filter(None, options.prompts.split(",")):
            count, tokens = map(int, shape.split("x"))
            seconds = []
            for turn in range(4):
                for i in range(count):
                    engine.add(request(f"{shape} {turn} {i}", tokens, vocab, 1))
                started = time.perf_counter()
                while not engine.idle:
                    engine.step()
                seconds.append(time.perf_counter() - started)
            for i in range(count):
                engine.add(request(f"{shape} last {i}", tokens, vocab, 1))
            report(f"{options.model} prompts {shape}", seconds[1:], kernels(engine, 1))
            while not engine.idle:
                engine.step()


def _finish_flight(engine: Engine) -> None:
    launched, engine._launched = engine._launched, None
    if launched is not None:
        engine._commit(launched)


if __name__ == "__main__":
    main()
