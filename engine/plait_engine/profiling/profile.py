"""A load's step as it is served, its parts, and how far it is from what the device could do."""

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity
from torch.profiler import profile as torch_profile

from plait_engine.build import build_engine
from plait_engine.config import EngineConfig
from plait_engine.engine import Engine
from plait_engine.profiling.ceilings import Ceilings, Least, least_of, measure_ceilings
from plait_engine.profiling.load import ProfileLoad
from plait_engine.profiling.parts import measuring
from plait_engine.runner.runner import Launched
from plait_engine.scheduler.step_plan import StepPlan

STEPS, PART_STEPS, TURNS = 24, 4, 4


@dataclass(frozen=True)
class LoadProfile:
    """Seconds of one step. ``parts`` and ``kernels``: by name, seconds and calls; kernels only on a GPU."""

    load: ProfileLoad
    step: float
    host: float
    """Of it, planning and launching: hidden behind the device where steps overlap."""
    parts: dict[str, tuple[float, float]]
    kernels: dict[str, tuple[float, float]]
    least: Least


@dataclass(frozen=True)
class ModelProfile:
    ceilings: Ceilings
    loads: tuple[LoadProfile, ...]


def profile_model(
    config: EngineConfig, loads: Iterable[ProfileLoad], trace: Path | None, report: Callable[[str], None]
) -> ModelProfile:
    """Raises ``BadLoad`` before anything is measured. ``trace``: where to put a Chrome trace of the last load."""
    built = build_engine(replace(config, prefix_reuse=False), report)
    engine, loads = built.engine, tuple(loads)
    for load in loads:
        load.refuse(engine)
    engine.runner.kernels.wait()
    engine.upgrade_kernels()
    report("measuring what the device can do")
    ceilings = measure_ceilings(engine.runner.device, next(engine.runner.model.parameters()).dtype)
    profiles = []
    for load in loads:
        report(f"profiling {load}")
        profiles.append(_profile(engine, load, trace if load is loads[-1] else None))
    return ModelProfile(ceilings, tuple(profiles))


def _profile(engine: Engine, load: ProfileLoad, trace: Path | None) -> LoadProfile:
    with load.running(engine, 1) as run, measuring(engine.runner) as parts:
        steps = len(run(PART_STEPS))
    found = {name: (seconds / steps, calls / steps) for name, (seconds, calls) in parts.seconds().items()}
    step, host = _timed(engine, load)
    return LoadProfile(load, step, host, found, _kernels(engine, load, trace), least_of(engine, load))


def _timed(engine: Engine, load: ProfileLoad) -> tuple[float, float]:
    """Medians: a step as it is served (of prompts: all steps until the last is answered), and the host's part."""
    runner, spent = engine.runner, list[float]()

    def launch(plan: StepPlan) -> Launched:
        started = time.perf_counter()
        launched = type(runner).launch(runner, plan)
        # On a CPU launching is computing, so only what comes before it is the host's.
        on_gpu = runner.device.type == "cuda"
        spent.append(time.perf_counter() - started if on_gpu else launched.planned_seconds)
        return launched

    runner.launch = launch  # type: ignore[method-assign]
    try:
        if load.kind == "decode":
            with load.running(engine, 2) as run:
                return statistics.median(run(STEPS)[3:]), statistics.median(spent)
        totals = []
        for turn in range(TURNS):
            with load.running(engine, 2 + turn) as run:
                totals.append(sum(run(0)))
        return statistics.median(totals[1:]), statistics.median(spent)
    finally:
        del runner.launch


def _kernels(engine: Engine, load: ProfileLoad, trace: Path | None) -> dict[str, tuple[float, float]]:
    on_gpu = engine.runner.device.type == "cuda"
    if not on_gpu and trace is None:
        return {}
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with load.running(engine, 9) as run, torch_profile(activities=activities) as seen:
        steps = len(run(PART_STEPS))
        if on_gpu:
            torch.cuda.synchronize()
    if trace is not None:
        seen.export_chrome_trace(str(trace))
    found: dict[str, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
    for event in seen.key_averages():
        if on_gpu and event.device_type == DeviceType.CUDA and event.self_device_time_total:
            seconds, calls = found[event.key]
            spent = float(event.self_device_time_total) / 1e6
            found[event.key] = (seconds + spent / steps, calls + event.count / steps)
    return dict(found)
