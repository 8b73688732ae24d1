"""Microseconds per call of every op on the CPU, reference beside compiled, at the shapes of the demo model.

    python -m benchmarks.kernels_cpu [--threads 2] [--dtype bfloat16] [--seconds 0.3] [--cpu-time]

Calls of the two are interleaved; the median of each is printed. Weights and states walk over several copies, as the
layers of a model do, so that they do not stay in the nearest cache.
"""

import argparse
import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import cycle

import torch
from torch import Tensor

from plait_kernels.sampling import SamplingTensors
from plait_kernels.segments import Chunk, Segments
from plait_kernels.select import Kernels, select
from plait_kernels.storage import Pages, Slots

HIDDEN, INNER, HEADS, HEAD_DIM, STATE, CONV, MLP, VOCABULARY = 320, 640, 10, 64, 64, 4, 1024, 8192
CHANNELS = INNER + 2 * STATE
QUERY_HEADS, KV_HEADS, PAGE = 5, 1, 16
COPIES = 6
Case = tuple[str, Callable[[Kernels], object]]


@dataclass(frozen=True)
class Load:
    """``sequences`` with ``history`` tokens each, and ``new`` to come; one new token is a decode."""

    sequences: int
    history: int
    new: int = 1

    @property
    def name(self) -> str:
        what = f"decode {self.sequences}" if self.new == 1 else f"prefill {self.new}"
        return f"{what} at {self.history}"

    @property
    def tokens(self) -> int:
        return self.sequences * self.new

    def segments(self) -> Segments:
        n, length = self.sequences, self.history + self.new
        starts = tuple(range(0, n * self.new + 1, self.new))
        return Segments(
            decodes=n if self.new == 1 else 0,
            starts=torch.tensor(starts, dtype=torch.int32),
            lengths=torch.full((n,), length, dtype=torch.int32),
            positions=torch.arange(self.history, length).repeat(n),
            sequence_of=torch.arange(n).repeat_interleave(self.new),
            starts_host=starts,
            lengths_host=(length,) * n,
            chunks=() if self.new == 1 else tuple(Chunk(starts[i], starts[i + 1], i) for i in range(n)),
        )

    def pages(self, segments: Segments) -> Pages:
        per_sequence = -(-(self.history + self.new) // PAGE)
        table = torch.arange(self.sequences * per_sequence, dtype=torch.int32).reshape(self.sequences, -1)
        table = table * (PAGE * KV_HEADS * HEAD_DIM * 4 // 256)
        write = table[segments.sequence_of, segments.positions // PAGE].long()
        return Pages(table, write, segments.positions % PAGE, PAGE)


def view(count: int, inner: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """``count`` units as a granule-indexed view."""
    unit = torch.zeros(inner).numel()
    strides = [torch.zeros(inner[i + 1 :]).numel() for i in range(len(inner))]
    step = 256 // dtype.itemsize
    memory: Tensor = torch.zeros(count * -(-unit // step) * step, dtype=dtype)
    strided: Tensor = memory.as_strided(((memory.numel() - unit) // step + 1, *inner), (step, *strides))
    return strided


def cases(load: Load, dtype: torch.dtype) -> Iterator[Case]:
    n, segments = load.tokens, load.segments()

    def values(*shape: int) -> Tensor:
        return (torch.randn(*shape) / math.sqrt(shape[-1])).to(dtype)

    def walk(tensors: list[Tensor]) -> Callable[[], Tensor]:
        endless = cycle(tensors)
        return lambda: next(endless)

    def product(x: Tensor, weight: Callable[[], Tensor]) -> Callable[[Kernels], object]:
        return lambda k: k.linear(x, weight())

    for name, outs, ins in (
        ("in_proj", INNER + CHANNELS + HEADS, HIDDEN),
        ("out_proj", HIDDEN, INNER),
        ("gate_up", 2 * MLP, HIDDEN),
        ("down", HIDDEN, MLP),
    ):
        yield f"linear {name}", product(values(n, ins), walk([values(outs, ins) for _ in range(COPIES)]))
    head, rows = walk([values(VOCABULARY, HIDDEN) for _ in range(2)]), values(load.sequences, HIDDEN)
    yield "linear head", lambda k: k.linear(rows, head(), out_dtype=torch.float32)

    hidden, residual, weight = values(n, HIDDEN), values(n, HIDDEN), values(HIDDEN)
    yield "rms_norm", lambda k: k.rms_norm(hidden, weight, 1e-5)
    yield "add_rms_norm", lambda k: k.add_rms_norm(hidden, residual, weight, 1e-5, scale=0.22)
    inner, gate, inner_weight = values(n, INNER), values(n, INNER), values(INNER)
    yield "gated_rms_norm", lambda k: k.gated_rms_norm(inner, gate, inner_weight, 1e-5, norm_first=False)
    both = values(n, 2 * MLP)
    yield "gated_activation", lambda k: k.gated_activation(both[:, :MLP], both[:, MLP:], "silu")

    unit = HEADS * HEAD_DIM * STATE * 4 // 256
    owners = torch.arange(load.sequences, dtype=torch.int32) * unit
    states = walk([view(load.sequences, (HEADS, HEAD_DIM, STATE), torch.float32) for _ in range(COPIES)])
    mixed, dt = values(n, CHANNELS), values(n, HEADS)
    x, b, c = mixed.split((INNER, STATE, STATE), dim=-1)  # type: ignore[no-untyped-call]
    a_log, d, dt_bias = (torch.randn(HEADS).to(dtype) for _ in range(3))
    yield (
        "ssd",
        lambda k: k.ssd(
            x.view(n, HEADS, HEAD_DIM),
            dt,
            a_log,
            b.view(n, 1, STATE),
            c.view(n, 1, STATE),
            d,
            dt_bias,
            states(),
            Slots(owners),
            segments,
            dt_limit=(0.0, float("inf")),
        ),
    )
    windows = view(load.sequences, (CHANNELS, CONV - 1), dtype)
    window_owners = torch.arange(load.sequences, dtype=torch.int32) * (-(-CHANNELS * 3 * dtype.itemsize // 256))
    taps, bias = values(CHANNELS, CONV), values(CHANNELS)
    yield (
        "causal_conv",
        lambda k: k.causal_conv(mixed, taps, bias, windows, Slots(window_owners), segments, activation="silu"),
    )
    pages = load.pages(segments)
    count = int(pages.table.max()) + PAGE * KV_HEADS * HEAD_DIM * 4 // 256
    k_view, v_view = (view(count, (PAGE, KV_HEADS, HEAD_DIM), dtype) for _ in range(2))
    q, key, value = values(n, QUERY_HEADS, HEAD_DIM), values(n, KV_HEADS, HEAD_DIM), values(n, KV_HEADS, HEAD_DIM)
    yield (
        "paged_attention",
        lambda k: k.paged_attention(q, key, value, k_view, v_view, pages, segments, scale=HEAD_DIM**-0.5),
    )
    logits, r = torch.randn(load.sequences, VOCABULARY) * 3, load.sequences
    uniform = torch.rand(r, dtype=torch.float64)
    top_p = SamplingTensors(
        torch.full((r,), 0.8), torch.zeros(r, dtype=torch.int64), torch.full((r,), 0.9), torch.zeros(r), uniform
    )
    yield "sample top_p", lambda k: k.sample(logits, top_p)


def medians(
    a: Callable[[], object], b: Callable[[], object], seconds: float, clock: Callable[[], float]
) -> tuple[float, float]:
    """Microseconds of each, called in turn."""
    taken: tuple[list[float], list[float]] = ([], [])
    until = time.perf_counter() + seconds
    while len(taken[0]) < 4 or time.perf_counter() < until:
        for call, times in zip((a, b), taken, strict=True):
            begin = clock()
            call()
            times.append((clock() - begin) * 1e6)
    return statistics.median(taken[0][1:]), statistics.median(taken[1][1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--seconds", type=float, default=0.3, help="for each op and load")
    parser.add_argument("--cpu-time", action="store_true", help="one thread's own time: for a machine that is busy")
    options = parser.parse_args()
    clock = time.thread_time if options.cpu_time else time.perf_counter
    options.threads = 1 if options.cpu_time else options.threads
    torch.set_num_threads(options.threads)
    dtype: torch.dtype = getattr(torch, options.dtype)
    reference, compiled = Kernels(), select(torch.device("cpu"), dtype)
    compiled.wait()
    print(f"{options.dtype}, {options.threads} threads; {compiled.choices['linear'].reason}")
    for load in (Load(1, 500), Load(16, 500), Load(1, 0, 256), Load(1, 0, 2048)):
        print(f"\n{load.name:24} {'reference us':>14} {'compiled us':>14} {'times':>7}")
        for name, call in cases(load, dtype):
            slow, fast = medians(partial(call, reference), partial(call, compiled), options.seconds, clock)
            print(f"{name:24} {slow:14.1f} {fast:14.1f} {slow / fast:7.1f}")


if __name__ == "__main__":
    with torch.inference_mode():
        main()
