"""From a config to an engine that is ready: plan first, allocate afterwards."""

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from plait_engine.activations import PLANNING_KERNELS, activation_bytes
from plait_engine.client import EngineInfo
from plait_engine.config import ConfigError, EngineConfig, LoadFormat
from plait_engine.engine import Engine
from plait_engine.layer_plan import describe
from plait_engine.loader.find import find_model
from plait_engine.loader.generation import read_generation
from plait_engine.loader.load import DTYPES, allocate, checkpoint_dtype, load, read_config
from plait_engine.memory_plan import MemoryPlan, left_over, plan_memory
from plait_engine.models.base import Model, bind_states
from plait_engine.models.registry import build_model
from plait_engine.phases import Phases
from plait_engine.remembered import remembered
from plait_engine.runner.grammars import Grammars
from plait_engine.runner.rows import RowTables
from plait_engine.runner.runner import ModelRunner
from plait_engine.runner.tuning import tune_on_gpu
from plait_engine.runner.warm_up import compiling, tell_of_late_kernels, warm_up
from plait_engine.scheduler.scheduler import Scheduler, SchedulerLimits
from plait_engine.state.arena import Arena
from plait_engine.state.ledger import Ledger
from plait_engine.state.placement import Placement
from plait_engine.state.prefix_cache import PrefixCache
from plait_engine.state.unit_copy import UnitCopier
from plait_engine.stats import Stats
from plait_kernels.select import Kernels, select

CPU_BATCH_TOKENS = 256
"""One step of this many prompt tokens takes tens of milliseconds on two cores; a running stream must wait for it."""
GPU_BATCH_TOKENS = 8192
CPU_SEQS, GPU_SEQS = 64, 256
CPU_MEMORY_SHARE = 0.25
"""Of the machine's memory: an inference server on a laptop is not alone there. Untouched arena costs nothing."""
GPU_MEMORY_SHARE = 0.9

Report = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """All that is decided before anything is allocated. ``model`` is on the meta device."""

    folder: Path
    device: torch.device
    model: Model
    kernels: Kernels
    memory: MemoryPlan
    eos_token_ids: tuple[int, ...]

    def describe(self) -> str:
        kernels = "\n".join(f"  {op:18} {c.implementation:10} {c.reason}" for op, c in self.kernels.choices.items())
        return (
            f"model {self.folder} on {self.device}\nlayers\n{describe(self.model.plan)}\nkernels\n{kernels}\n"
            f"memory\n{self.memory.describe()}"
        )


@dataclass(frozen=True)
class Built:
    engine: Engine
    info: EngineInfo


def make_plan(config: EngineConfig) -> Plan:
    """Find the model, read its config, lay out memory. Loads nothing."""
    folder = find_model(config.model)
    described = read_config(folder)
    device = pick_device(config.device)
    dtype = checkpoint_dtype(described) if config.dtype == "auto" else DTYPES[config.dtype]
    kernels = select(device, dtype)
    build = partial(
        build_model,
        described,
        dtype=dtype,
        state_dtype=DTYPES[config.state_dtype],
        page_size=config.page_size,
        max_positions=config.max_model_len,
    )
    model = build(kernels=kernels)
    on_cpu = device.type == "cpu"
    tokens = config.max_batch_tokens or (CPU_BATCH_TOKENS if on_cpu else GPU_BATCH_TOKENS)

    def activations(max_seqs: int) -> int:
        limits = SchedulerLimits(tokens, max_seqs, model.max_positions)
        question = repr((described, dtype, config.state_dtype, config.page_size, limits, config.decode_padding))
        return remembered(
            question, lambda: activation_bytes(build(kernels=PLANNING_KERNELS), limits, config.decode_padding)
        )

    memory = plan_memory(
        model.plan.groups,
        budget_bytes=config.memory_bytes or default_budget(device),
        weights_bytes=model.weights_bytes,
        activation_bytes=activations,
        max_seqs=config.max_seqs or (CPU_SEQS if on_cpu else GPU_SEQS),
        max_batch_tokens=tokens,
        max_model_len=model.max_positions,
    )
    return Plan(folder, device, model, kernels, memory, read_generation(folder, described).eos_token_ids)


def build_engine(config: EngineConfig, progress: Report = lambda _: None, phases: Phases | None = None) -> Built:
    """Plan, allocate, load, warm up. ``progress`` is told what goes on, a line at a time; ``phases`` go on."""
    phases = phases or Phases()
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    plan = make_plan(config)
    memory = plan.memory
    progress(plan.describe())
    phases.over("plan")
    before = torch.cuda.mem_get_info(plan.device)[0] if plan.device.type == "cuda" else 0
    allocate(plan.model, plan.device)
    arena = Arena(memory.arena_bytes, plan.device)
    ledger = Ledger(arena, memory.groups, config.poison)
    plan.model.bind(bind_states(plan.model.plan, arena))
    copier = UnitCopier(arena, memory.groups, plan.kernels.copy_units, plan.kernels.checksum_units)
    placement = Placement.for_groups(memory.groups)
    if config.checkpoint_interval is not None:
        placement = Placement(config.checkpoint_interval)
    cache = PrefixCache(
        ledger,
        copier,
        placement,
        Stats(),
        fingerprint=fingerprint(plan),
        enabled=config.prefix_reuse,
        pin_slabs=memory.pin_slabs(config.pin_share),
    )
    limits = SchedulerLimits(memory.max_batch_tokens, memory.max_seqs, memory.max_model_len)
    on_cpu = plan.device.type == "cpu"
    # On a GPU a step of decodes alone is a recorded one, and forced tokens beside them would make it another.
    fast_forward = on_cpu if config.fast_forward is None else config.fast_forward
    runner = ModelRunner(
        plan.model,
        plan.kernels,
        RowTables(memory.groups, ledger.reserved, limits.max_seqs, limits.max_model_len),
        plan.device,
        copier=copier,
        decode_padding=config.decode_padding,
        eos_token_ids=plan.eos_token_ids,
        grammars=Grammars.of_folder(plan.folder, plan.model.vocab_size, plan.eos_token_ids, fast_forward=fast_forward),
    )
    phases.over("memory")
    with compiling(runner, ledger.reserved, limits, progress) as asked:
        phases.over("kernels")
        folder = None if config.load_format is LoadFormat.RANDOM else plan.folder
        load(plan.model, folder, seed=config.seed, progress=_every_tenth(progress))
        phases.over("weights")
    runner.settle_threads()
    phases.over("kernels still")
    if config.tune and tune_on_gpu(runner, ledger, limits, asked, progress):
        with compiling(runner, ledger.reserved, limits, progress):
            phases.over("tuning")
        phases.over("kernels again")
    tell_of_late_kernels(runner, progress)
    if plan.device.type == "cuda":
        warm_up(runner, ledger.reserved, limits, progress)
        progress(left_over(memory, before, torch.cuda.mem_get_info(plan.device)[0]))
    phases.over("graphs")
    overlap = not on_cpu if config.overlap is None else config.overlap
    engine = Engine(Scheduler(limits, cache), runner, plan.eos_token_ids, overlap, config.audit_rate)
    info = EngineInfo(
        model=str(plan.folder),
        max_model_len=limits.max_model_len,
        vocab_size=plan.model.vocab_size,
        eos_token_ids=plan.eos_token_ids,
        max_seqs=limits.max_seqs,
        max_queue=config.max_queue,
        report=plan.describe(),
    )
    progress(f"start: {phases}")
    return Built(engine, info)


def fingerprint(plan: Plan) -> str:
    """Names the layout of state and the model that writes it: another model, or another layout, has another name."""
    digest = hashlib.sha256(repr(plan.memory.groups).encode())
    for path in sorted(plan.folder.glob("*.json")) + sorted(plan.folder.glob("*.safetensors")):
        digest.update(f"{path.name} {path.stat().st_size} {path.stat().st_mtime_ns}".encode())
    return digest.hexdigest()


def pick_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"device must be auto, cpu or cuda, not {name!r}") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device cuda was asked for, but this torch sees no GPU; use --device cpu")
    return device


def default_budget(device: torch.device) -> int:
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free * GPU_MEMORY_SHARE)
    return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * CPU_MEMORY_SHARE)


def _every_tenth(progress: Report) -> Callable[[int, int], None]:
    """Weights come in many small pieces; tell of every tenth part of them."""
    told = -1

    def report(done: int, total: int) -> None:
        nonlocal told
        if (tenth := 10 * done // total) > told:
            told = tenth
            progress(f"weights: {done / 1e6:,.0f} of {total / 1e6:,.0f} MB")

    return report
