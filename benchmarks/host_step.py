"""Host time of a decode step at 64 sequences: scheduling, batch building, sampling parameters, commit. No model runs.

    python benchmarks/host_step.py

Prints the median microseconds of each part, for an 8-layer hybrid's state groups (attention, windows, Mamba-2).
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from plait_engine.engine import Engine
from plait_engine.request import Request, SamplingParams
from plait_engine.runner.rows import RowTables
from plait_engine.runner.runner import ModelRunner
from plait_engine.scheduler.scheduler import Scheduler, SchedulerLimits
from plait_engine.scheduler.step_plan import Row
from plait_engine.state.arena import Arena
from plait_engine.state.ledger import Ledger
from plait_engine.state.pools import choose_slab_bytes
from plait_engine.state.prefix_cache import PrefixCache
from plait_engine.state.spec import PagedSpec, SlotSpec, StateGroup, TensorSpec, group_specs
from plait_engine.state.unit_copy import UnitCopier
from plait_kernels.select import Kernels

VOCAB = 8192
LENGTH = 2048
CPU = torch.device("cpu")


def hybrid_groups() -> tuple[StateGroup, ...]:
    """Eight layers: five Mamba-2, two attention, one sliding window."""
    entry = (TensorSpec("k", (2, 64), torch.bfloat16), TensorSpec("v", (2, 64), torch.bfloat16))
    conv, matrix = TensorSpec("conv", (1280, 3), torch.bfloat16), TensorSpec("ssm", (16, 32, 64), torch.float32)
    mamba, full = SlotSpec("mamba2", (conv, matrix)), PagedSpec("full_attention", entry)
    window = PagedSpec("sliding_attention", entry, window=512)
    return group_specs(((mamba,), (mamba,), (full,), (mamba,), (window,), (mamba,), (full,), (mamba,)), page_size=16)


class NoModel(torch.nn.Module):
    """Stands where the model would: hidden states and logits of the right shape, at no cost."""

    vocab_size = VOCAB

    def forward(self, batch: object) -> torch.Tensor:
        return torch.zeros(batch.token_ids.shape[0], 8)  # type: ignore[attr-defined]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.zeros(hidden.shape[0], VOCAB)


def make_engine(sequences: int, sampling: SamplingParams) -> Engine:
    """An engine in which ``sequences`` of about ``LENGTH`` / 2 tokens are decoding."""
    groups = hybrid_groups()
    slab = choose_slab_bytes(groups)
    ledger = Ledger(Arena(slab * 400, CPU), groups)
    limits = SchedulerLimits(max_batch_tokens=8192, max_seqs=sequences, max_model_len=LENGTH)
    tables = RowTables(groups, ledger.reserved, sequences, LENGTH)
    kernels = Kernels(sample=lambda logits, params: torch.zeros(len(logits), dtype=torch.int64))  # noqa: ARG005
    copier = UnitCopier(ledger.arena, groups)
    runner = ModelRunner(NoModel(), kernels, tables, CPU, copier=copier, decode_padding=1, eos_token_ids=())  # type: ignore[arg-type]
    engine = Engine(Scheduler(limits, PrefixCache.disabled(ledger)), runner, (), overlap=False)
    for i in range(sequences):
        prompt = tuple((7 * i + j) % VOCAB for j in range(LENGTH // 2 - i))
        engine.add(Request(id=str(i), prompt=prompt, sampling=sampling))
    while engine.scheduler.waiting or any(s.remaining > 1 for s in engine.scheduler.running):
        engine.step()
    return engine


def measure(engine: Engine, steps: int) -> dict[str, float]:
    """Median microseconds of each part of a step."""
    seconds: dict[str, list[float]] = {part: [] for part in ("schedule", "rows", "build", "sampler", "commit")}

    def timed(part: str, call: Callable[..., Any], *args: Any) -> Any:
        started = time.perf_counter()
        result = call(*args)
        seconds[part].append(time.perf_counter() - started)
        return result

    runner = engine.runner

    def prepare_sampling(rows: tuple[Row, ...]) -> None:
        runner.sampler._penalties([row.sequence for row in rows])
        runner.sampler._tensors(rows)

    for _ in range(steps):
        plan = timed("schedule", engine.scheduler.schedule)
        timed("rows", runner._refresh, plan)
        built = timed("build", runner.builder.build, plan)
        timed("sampler", prepare_sampling, built.sampled)
        timed("commit", engine._commit, runner.launch(plan))
    return {part: statistics.median(values) * 1e6 for part, values in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, default=64)
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    torch.set_num_threads(1)
    loads = {
        "greedy": SamplingParams(max_tokens=LENGTH, temperature=0.0),
        "sampled": SamplingParams(max_tokens=LENGTH, temperature=0.8, top_p=0.9, seed=1),
        "penalised": SamplingParams(max_tokens=LENGTH, repetition_penalty=1.1, frequency_penalty=0.2),
    }
    print(f"{options.sequences} decodes, microseconds a step (median of {options.steps})")
    print(f"{'':10}" + "".join(f"{part:>10}" for part in ("schedule", "rows", "build", "sampler", "commit", "total")))
    for name, sampling in loads.items():
        parts = measure(make_engine(options.sequences, sampling), options.steps)
        print(f"{name:10}" + "".join(f"{value:10.0f}" for value in (*parts.values(), sum(parts.values()))))


if __name__ == "__main__":
    main()
