"""Host time of an engine's steps while the cache has room, and once it is full. No model runs.

    python -m benchmarks.full_cache

Books as large as those of a 4.2 B Gated DeltaNet hybrid on a GPU with 141 GB (32 layers, 57,084 slabs), without the
memory behind them. Prompts have nothing in common, so when the cache is full, every one of them costs evictions.
"""

import argparse
import random
import time
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.host_step import CPU, VOCAB, NoModel
from plait_engine.engine import Engine
from plait_engine.request import Request, SamplingParams
from plait_engine.runner.rows import RowTables
from plait_engine.runner.runner import ModelRunner
from plait_engine.scheduler.scheduler import Scheduler, SchedulerLimits
from plait_engine.state.ledger import Ledger
from plait_engine.state.placement import Placement
from plait_engine.state.pools import choose_slab_bytes
from plait_engine.state.prefix_cache import PrefixCache
from plait_engine.state.spec import PagedSpec, SlotSpec, StateGroup, TensorSpec, group_specs
from plait_engine.stats import Stats
from plait_kernels.select import Kernels

SEQUENCES, PROMPT, OUTPUT = 32, 1024, 64


@dataclass
class NoArena:
    n_bytes: int


class NoFill(Ledger):
    def _fill(self, *_: object) -> None: ...


class NoCopies:
    def copy(self, _: object) -> None: ...

    def checksum(self, units: dict[Any, Any]) -> torch.Tensor:
        return torch.zeros(len(units), dtype=torch.int64)


def gated_delta_groups() -> tuple[StateGroup, ...]:
    entry = (TensorSpec("k", (4, 256), torch.bfloat16), TensorSpec("v", (4, 256), torch.bfloat16))
    conv, delta = TensorSpec("conv", (8192, 3), torch.bfloat16), TensorSpec("delta", (32, 128, 128), torch.float32)
    mixer, full = SlotSpec("gated_delta_net", (conv, delta)), PagedSpec("full_attention", entry)
    return group_specs(((mixer,), (mixer,), (mixer,), (full,)) * 8, page_size=16)


def make_engine(slabs: int) -> Engine:
    groups = gated_delta_groups()
    ledger = NoFill(NoArena(choose_slab_bytes(groups) * slabs), groups)  # type: ignore[arg-type]
    limits = SchedulerLimits(max_batch_tokens=8192, max_seqs=SEQUENCES, max_model_len=PROMPT + OUTPUT)
    tables = RowTables(groups, ledger.reserved, SEQUENCES, limits.max_model_len)
    kernels = Kernels(sample=lambda logits, params: torch.zeros(len(logits), dtype=torch.int64))  # noqa: ARG005
    copier, placement = NoCopies(), Placement.for_groups(groups)
    runner = ModelRunner(NoModel(), kernels, tables, CPU, copier=copier, decode_padding=1, eos_token_ids=())  # type: ignore[arg-type]
    cache = PrefixCache(ledger, copier, placement, Stats(), fingerprint="", enabled=True)  # type: ignore[arg-type]
    return Engine(Scheduler(limits, cache), runner, (), overlap=False)


class Load:
    """A closed loop of ``SEQUENCES`` requests."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.added, self._draw = engine, 0, random.Random(1)

    def run(self, requests: int) -> list[float]:
        """Seconds of each step until so many more have come; the last ones go on running."""
        scheduler, seconds = self.engine.scheduler, list[float]()
        sampling, last = SamplingParams(max_tokens=OUTPUT, temperature=0.0, ignore_eos=True), self.added + requests
        while self.added < last:
            while self.added < last and len(scheduler.running) + len(scheduler.waiting) < SEQUENCES:
                prompt = tuple(self._draw.choices(range(VOCAB), k=PROMPT))
                self.engine.add(Request(id=str(self.added), prompt=prompt, sampling=sampling))
                self.added += 1
            started = time.perf_counter()
            self.engine.step()
            seconds.append(time.perf_counter() - started)
        return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slabs", type=int, default=57084)
    parser.add_argument("--requests", type=int, default=256, help="that are timed, each time")
    options = parser.parse_args()
    torch.set_num_threads(1)
    engine = make_engine(options.slabs)
    load, slabs = Load(engine), engine.scheduler.ledger.slabs
    load.run(SEQUENCES)
    roomy = load.run(options.requests)
    while slabs.free > options.slabs // 100:
        load.run(SEQUENCES)
    load.run(SEQUENCES)
    full = load.run(options.requests)
    print(f"{SEQUENCES} sequences, prompts of {PROMPT}, {OUTPUT} tokens out; milliseconds of host time")
    for name, seconds in (("with room", roomy), ("full", full)):
        ordered = sorted(seconds)
        a_request = 1e3 * sum(seconds) / options.requests
        print(
            f"{name:10} a request {a_request:7.2f}   a step: median {1e3 * ordered[len(ordered) // 2]:6.2f}, "
            f"99% {1e3 * ordered[int(0.99 * len(ordered))]:6.1f}, longest {1e3 * ordered[-1]:6.1f}",
            flush=True,
        )
    print(f"full / with room: {sum(full) / sum(roomy):.2f} x")


if __name__ == "__main__":
    main()
