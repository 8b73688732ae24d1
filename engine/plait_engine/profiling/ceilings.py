"""What the device can do at most, measured, and what a step must move at least, counted."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from plait_engine.engine import Engine
from plait_engine.profiling.load import ProfileLoad
from plait_engine.state.spec import PagedSpec, Position

REPEATS = 5


@dataclass(frozen=True)
class Ceilings:
    """``bandwidth``: bytes read plus bytes written a second, by a large copy; ``arithmetic``: FLOP/s of a product."""

    bandwidth: float
    arithmetic: float


def measure_ceilings(device: torch.device, dtype: torch.dtype) -> Ceilings:
    on_gpu = device.type == "cuda"
    n_bytes, side = (1 << 30, 8192) if on_gpu else (1 << 27, 1024)
    source = torch.empty(n_bytes, dtype=torch.uint8, device=device).fill_(1)
    target = torch.empty_like(source)
    left, right = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    copy = min(_seconds(lambda: target.copy_(source), device) for _ in range(REPEATS))
    product = min(_seconds(lambda: left @ right, device) for _ in range(REPEATS))
    return Ceilings(2 * n_bytes / copy, 2 * side**3 / product)


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    started = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


@dataclass(frozen=True)
class Least:
    """Bytes that a step must move, each read or written once, and the floating point operations of its matrices."""

    n_bytes: int
    operations: int

    def seconds(self, ceilings: Ceilings) -> float:
        """No step is much faster."""
        return max(self.n_bytes / ceilings.bandwidth, self.operations / ceilings.arithmetic)


def least_of(engine: Engine, load: ProfileLoad) -> Least:
    """Weights once; states of each sequence read and written; keys and values of what each sequence has before it."""
    model = engine.runner.model
    slots = sum(g.unit_bytes * g.units_per_slot for g in engine.ledger.groups if not g.paged)
    entries = 0
    for group in engine.ledger.groups:
        if group.paged:
            assert isinstance(group.spec, PagedSpec)
            seen = len(group.spec.needed(Position(load.tokens)))
            entries += seen * group.unit_bytes // group.page_size
    tokens = load.sequences * (1 if load.kind == "decode" else load.tokens)
    moved = model.weights_bytes + load.sequences * (2 * slots + entries)
    size = next(model.parameters()).dtype.itemsize
    return Least(moved, 2 * model.weights_bytes // size * tokens)
