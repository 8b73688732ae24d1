"""Every Triton kernel at the shapes of three models: what it must move and compute, and what it must equal.

M1: Gated DeltaNet hybrid of 4.2 B parameters, M2: Mamba-2 hybrid of 3.2 B, M3: sliding-window hybrid of 3.9 B.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.world import Part, World
from plait_kernels.causal_conv import reference as conv_reference
from plait_kernels.checksum_units import reference as checksum_reference
from plait_kernels.copy_units import reference as copy_reference
from plait_kernels.gated_activation import reference as activation_reference
from plait_kernels.gated_delta_rule import reference as gdn_reference
from plait_kernels.gdn_step import reference as gdn_step_reference
from plait_kernels.linear import reference as linear_reference
from plait_kernels.mamba2_step import reference as mamba2_reference
from plait_kernels.moe import reference as moe_reference
from plait_kernels.norm import reference as norm_reference
from plait_kernels.paged_attention import reference as attention_reference
from plait_kernels.qk_rotary import reference as qk_reference
from plait_kernels.sampling import SamplingTensors
from plait_kernels.sampling import reference as sampling_reference
from plait_kernels.ssd import reference as ssd_reference
from plait_kernels.triton_ops import IMPLEMENTATIONS, JOINED

BF16, FP32 = torch.bfloat16, torch.float32
OPS = IMPLEMENTATIONS | JOINED
ROTATION_BYTES = 300_000_000
"""Buffers of a case together, so that none is still in the cache when its turn comes again."""


@dataclass(frozen=True)
class Call:
    """One call of an op: its arguments, and the state that it changes, as tensors to compare (or None)."""

    args: tuple[Any, ...]
    options: dict[str, Any]
    arena: Tensor | None = None
    state: Callable[[], Tensor] | None = None


@dataclass(frozen=True)
class Case:
    """``n_bytes`` that must move, ``flops`` that must be computed; ``make`` builds one set of buffers.

    ``tunables`` are the kernels' names in the stored tables. ``limit`` bounds the relative error.
    """

    op: str
    model: str
    label: str
    n_bytes: float
    flops: float
    make: Callable[[World], Call]
    truth: Callable[..., Any]
    tunables: tuple[str, ...] = ()
    limit: float = 8e-3

    @property
    def name(self) -> str:
        return f"{self.op} {self.model} {self.label}"

    @property
    def sets(self) -> int:
        return int(min(8, max(1, ROTATION_BYTES // max(1, self.n_bytes) + 1)))

    def run(self, call: Call) -> Any:
        return OPS[self.op](*call.args, **call.options)


@dataclass(frozen=True)
class Attention:
    heads: int
    kv_heads: int
    dim: int
    window: int | None = None

    def case(self, model: str, label: str, decodes: int, history: int, longer: tuple[Part, ...] = ()) -> Case:
        def make(world: World) -> Call:
            segments = world.segments(decodes, history, longer)
            arena, k_view, v_view, pages = world.pages(segments, self.kv_heads, self.dim)
            qkv = world.normal(segments.tokens, self.heads + 2 * self.kv_heads, self.dim)
            q, k, v = qkv.split([self.heads, self.kv_heads, self.kv_heads], dim=1)
            options = {"scale": self.dim**-0.5, "window": self.window}
            return Call((q, k, v, k_view, v_view, pages, segments), options, arena)

        parts = [*[Part(history, 1)] * decodes, *longer]
        seen = [min(p.history + p.new, (self.window or 1 << 62) + p.new) for p in parts]
        new = sum(p.new for p in parts)
        n_bytes = 4 * self.kv_heads * self.dim * sum(seen) + 4 * new * self.heads * self.dim
        pairs = sum(self._pairs(p) for p in parts)
        flops = 4 * pairs * self.heads * self.dim
        tunables = ("attention_decode",) if decodes else ("attention_prefill",)
        truth = attention_reference.paged_attention
        return Case("paged_attention", model, label, n_bytes, flops, make, truth, tunables)

    def _pairs(self, part: Part) -> int:
        """(query, key) pairs that see one another."""
        window = self.window or 1 << 62
        if part.history + part.new <= window:
            return part.new * part.history + part.new * (part.new + 1) // 2
        return sum(min(window, part.history + i + 1) for i in range(part.new))


@dataclass(frozen=True)
class Delta:
    key_heads: int = 16
    value_heads: int = 32
    dim: int = 128

    @property
    def channels(self) -> int:
        return (2 * self.key_heads + self.value_heads) * self.dim

    def weights(self, world: World) -> tuple[Tensor, Tensor]:
        """a_log and dt_bias as trained ones are: slow decays."""
        return world.normal(self.value_heads, dtype=FP32), world.normal(self.value_heads, dtype=FP32)

    def rule(self, label: str, decodes: int, longer: tuple[Part, ...], state: torch.dtype) -> Case:
        new = decodes + sum(p.new for p in longer)
        sequences = decodes + len(longer)

        def make(world: World) -> Call:
            segments = world.segments(decodes, 100, longer)
            inner = (self.value_heads, self.dim, self.dim)
            arena, (view,), slots = world.slots(sequences, (inner, state))
            mixed = world.normal(new, self.channels + 2 * self.value_heads)
            keys, values = self.key_heads * self.dim, self.value_heads * self.dim
            q, k, v, a, b = mixed.split([keys, keys, values, self.value_heads, self.value_heads], dim=-1)
            q, k, v = (u.view(new, -1, self.dim) for u in (q, k, v))
            args = (q, k, v, a, b, *self.weights(world), view, slots, segments)
            return Call(args, {}, arena, lambda: view[slots.rows.long()])

        n_bytes = 2 * sequences * self.value_heads * self.dim**2 * state.itemsize + new * 2 * (
            self.channels + self.value_heads * self.dim
        )
        flops = new * self.value_heads * 6 * self.dim**2
        tunables = ("gdn_step",) if decodes else ("gdn_turned_block", "gdn_turned_solve", "gdn_turned_scan")
        limit = 8e-3 if decodes else 1.5e-2
        truth = gdn_reference.gated_delta_rule
        return Case("gated_delta_rule", "M1", label, n_bytes, flops, make, truth, tunables, limit)

    def step(self, label: str, rows: int, state: torch.dtype) -> Case:
        values = self.value_heads * self.dim

        def make(world: World) -> Call:
            tensors = (((self.channels, 3), BF16), ((self.value_heads, self.dim, self.dim), state))
            arena, (windows, view), slots = world.slots(rows, *tensors)
            wide = world.normal(rows, self.channels + values + 2 * self.value_heads)
            mixed, gate, b, a = wide.split([self.channels, values, self.value_heads, self.value_heads], dim=-1)
            args = (mixed, gate, a, b, world.normal(self.channels, 4), None, *self.weights(world))
            args = (*args, world.normal(self.dim), 1e-6, windows, view, slots)
            return Call(args, {}, arena, lambda: view[slots.rows.long()])

        n_bytes = rows * (2 * values * self.dim * state.itemsize + 2 * self.channels * 7 + 4 * values)
        truth = gdn_step_reference.gdn_step
        return Case("gdn_step", "M1", label, n_bytes, 0, make, truth, ("gdn_mixer_step",))


@dataclass(frozen=True)
class Mamba:
    heads: int = 64
    dim: int = 64
    state_dim: int = 128

    @property
    def channels(self) -> int:
        return self.heads * self.dim + 2 * self.state_dim

    def weights(self, world: World) -> tuple[Tensor, Tensor, Tensor]:
        """a_log, d, dt_bias."""
        return tuple(world.normal(self.heads, dtype=FP32) for _ in range(3))  # type: ignore[return-value]

    def ssd(self, label: str, decodes: int, longer: tuple[Part, ...], state: torch.dtype) -> Case:
        new = decodes + sum(p.new for p in longer)
        sequences = decodes + len(longer)
        inner = self.heads * self.dim

        def make(world: World) -> Call:
            segments = world.segments(decodes, 100, longer)
            arena, (view,), slots = world.slots(sequences, ((self.heads, self.dim, self.state_dim), state))
            mixed = world.normal(new, self.channels + self.heads)
            x, b, c, dt = mixed.split([inner, self.state_dim, self.state_dim, self.heads], dim=-1)
            x, b, c = x.view(new, self.heads, -1), b.view(new, 1, -1), c.view(new, 1, -1)
            a_log, d, dt_bias = self.weights(world)
            args = (x, dt, a_log, b, c, d, dt_bias, view, slots, segments)
            return Call(args, {"dt_limit": (0.0, float("inf"))}, arena, lambda: view[slots.rows.long()])

        n_bytes = 2 * sequences * inner * self.state_dim * state.itemsize + new * 2 * (self.channels + inner)
        flops = new * inner * 4 * self.state_dim
        tunables = ("ssd_step",) if decodes else ("ssd_parallel_block", "ssd_parallel_states", "ssd_parallel_outputs")
        return Case("ssd", "M2", label, n_bytes, flops, make, ssd_reference.ssd, tunables)

    def step(self, label: str, rows: int, state: torch.dtype) -> Case:
        inner = self.heads * self.dim

        def make(world: World) -> Call:
            tensors = (((self.channels, 3), BF16), ((self.heads, self.dim, self.state_dim), state))
            arena, (windows, view), slots = world.slots(rows, *tensors)
            wide = world.normal(rows, inner + self.channels + self.heads)
            gate, mixed, dt = wide.split([inner, self.channels, self.heads], dim=-1)
            a_log, d, dt_bias = self.weights(world)
            args = (mixed, gate, dt, world.normal(self.channels, 4), world.normal(self.channels), a_log, d, dt_bias)
            args = (*args, world.normal(inner), 1e-5, windows, view, slots)
            return Call(args, {"dt_limit": (0.0, float("inf"))}, arena, lambda: view[slots.rows.long()])

        n_bytes = rows * (2 * inner * self.state_dim * state.itemsize + 2 * self.channels * 7 + 4 * inner)
        truth = mamba2_reference.mamba2_step
        return Case("mamba2_step", "M2", label, n_bytes, 0, make, truth, ("mamba2_mixer_step",))


def convolution(model: str, label: str, channels: int, decodes: int, longer: tuple[Part, ...]) -> Case:
    new, sequences = decodes + sum(p.new for p in longer), decodes + len(longer)

    def make(world: World) -> Call:
        segments = world.segments(decodes, 100, longer)
        arena, (view,), slots = world.slots(sequences, ((channels, 3), BF16))
        x = world.normal(new, channels + 4096)[:, :channels]
        args = (x, world.normal(channels, 4), world.normal(channels), view, slots, segments)
        return Call(args, {"activation": "silu"}, arena, lambda: view[slots.rows.long()])

    n_bytes = 4 * new * channels + 12 * sequences * channels
    tunables = ("conv_step",) if decodes else ("conv_tiles",)
    return Case("causal_conv", model, label, n_bytes, 0, make, conv_reference.causal_conv, tunables)


def product(model: str, rows: int, ins: int, outs: int, head: bool = False) -> Case:
    def make(world: World) -> Call:
        options = {"out_dtype": FP32} if head else {}
        return Call((world.normal(rows, ins), world.normal(outs, ins, scale=ins**-0.5)), options)

    n_bytes = 2 * ins * outs + 2 * rows * ins + (4 if head else 2) * rows * outs
    label = f"{rows}x{ins}x{outs}"
    truth = linear_reference.linear
    return Case("linear", model, label, n_bytes, 2 * rows * ins * outs, make, truth, ("linear",))


def elementwise(model: str, rows: int, hidden: int, inner: int) -> Iterator[Case]:
    def norm(world: World) -> Call:
        args = (world.normal(rows, hidden), world.normal(rows, hidden), world.normal(hidden), 1e-6)
        return Call(args, {"scale": 0.22, "offset": 1.0})

    def activation(world: World) -> Call:
        return Call((*world.normal(rows, 2 * inner).chunk(2, dim=-1), "silu"), {})

    yield Case("add_rms_norm", model, f"{rows}", 8 * rows * hidden, 0, norm, norm_reference.add_rms_norm)
    truth = activation_reference.gated_activation
    yield Case("gated_activation", model, f"{rows}", 6 * rows * inner, 0, activation, truth)


def heads(model: str, rows: int, attention: Attention, rotary_dim: int) -> Case:
    dim = attention.dim

    def make(world: World) -> Call:
        qk = world.normal(rows, attention.heads + 2 * attention.kv_heads, dim)
        q, k, _ = qk.split([attention.heads, attention.kv_heads, attention.kv_heads], dim=1)
        positions = torch.arange(rows, device=world.device) * 37 % 4096
        angles = torch.rand(4096, rotary_dim // 2, device=world.device) * 6.0
        table = torch.cat((angles.cos(), angles.sin()), dim=-1)
        args = (q, k, world.normal(dim), world.normal(dim), 1e-6, positions, table)
        return Call(args, {"offset": 1.0})

    n_bytes = 4 * rows * (attention.heads + attention.kv_heads) * dim
    return Case("qk_rotary", model, f"{rows}", n_bytes, 0, make, qk_reference.qk_rotary)


def gated_norm(model: str, rows: int, n: int, width: int, norm_first: bool) -> Case:
    def make(world: World) -> Call:
        args = (world.normal(rows, n), world.normal(rows, n), world.normal(width), 1e-6)
        return Call(args, {"norm_first": norm_first})

    truth = norm_reference.gated_rms_norm
    return Case("gated_rms_norm", model, f"{rows}", 6 * rows * n, 0, make, truth)


def experts(rows: int, hidden: int = 2048, inner: int = 512, count: int = 128, chosen: int = 8) -> Case:
    """A mixture as a 30 B model has it: no part of M1 to M3."""

    def make(world: World) -> Call:
        ids = torch.rand(rows, count, device=world.device).topk(chosen).indices
        weights = torch.rand(rows, chosen, device=world.device)
        gate_up = world.normal(count, 2 * inner, hidden, scale=0.02)
        down = world.normal(count, hidden, inner, scale=0.04)
        return Call((world.normal(rows, hidden), ids, weights, gate_up, down), {"activation": "silu"})

    used = count * (1 - (1 - chosen / count) ** rows)
    n_bytes = used * 6 * inner * hidden + 4 * rows * hidden
    flops = 6 * rows * chosen * inner * hidden
    return Case("moe", "mix", f"{rows}", n_bytes, flops, make, moe_reference.moe, ("moe_product",))


def sampling(model: str, rows: int, vocab: int, kind: str) -> Case:
    def make(world: World) -> Call:
        logits = world.normal(rows, vocab, dtype=FP32, scale=4.0)
        params = SamplingTensors(
            torch.full((rows,), 0.8, device=world.device),
            torch.full((rows,), 50 if kind == "limited" else 0, device=world.device),
            torch.full((rows,), 0.95 if kind == "limited" else 1.0, device=world.device),
            torch.zeros(rows, device=world.device),
            torch.rand(rows, dtype=torch.float64, device=world.device),
            all_greedy=kind == "greedy",
            unlimited=kind != "limited",
        )
        return Call((logits, params), {})

    n_bytes = 4 * rows * vocab
    return Case("sample", model, f"{kind} {rows}", n_bytes, 0, make, sampling_reference.sample, (), 0.0)


def scores(model: str, rows: int, vocab: int) -> Case:
    def make(world: World) -> Call:
        chosen = torch.arange(rows, device=world.device) * 97 % vocab
        return Call((world.normal(rows, vocab, dtype=FP32, scale=4.0), chosen, 20), {})

    return Case("logprobs", model, f"20 of {rows}", 4 * rows * vocab, 0, make, sampling_reference.logprobs, (), 1e-5)


def copies(units: int, n_bytes: int) -> Case:
    def make(world: World) -> Call:
        granules = -(-n_bytes // 256)
        arena = torch.empty(2 * units * granules * 256, dtype=torch.uint8, device=world.device)
        if world.fill:
            arena.random_()
        order = (torch.randperm(2 * units, generator=torch.Generator().manual_seed(0)) * granules).int()
        sources, targets = order.to(world.device).chunk(2)
        return Call((arena, sources, targets, n_bytes), {}, arena, lambda: arena)

    label = f"{units} of {n_bytes // 1024} KiB"
    return Case(
        "copy_units", "all", label, 2 * units * n_bytes, 0, make, copy_reference.copy_units, ("copy_units",), 0.0
    )


def checksums(units: int, n_bytes: int) -> Case:
    def make(world: World) -> Call:
        granules = -(-n_bytes // 256)
        arena = torch.empty(units * granules * 256, dtype=torch.uint8, device=world.device)
        if world.fill:
            arena.random_()
        order = (torch.randperm(units, generator=torch.Generator().manual_seed(0)) * granules).int()
        return Call((arena, order.to(world.device), n_bytes), {})

    label = f"{units} of {n_bytes // 1024} KiB"
    truth = checksum_reference.checksum_units
    return Case("checksum_units", "all", label, units * n_bytes, 0, make, truth, (), 0.0)


M1_ATTENTION, M2_ATTENTION = Attention(16, 4, 256), Attention(32, 8, 64)
M3_FULL, M3_WINDOW = Attention(8, 4, 256), Attention(8, 4, 256, window=1024)
M1_PRODUCTS = [(2560, 12352), (4096, 2560), (2560, 10240), (2560, 18432), (9216, 2560)]
M2_PRODUCTS = [(2048, 8512), (4096, 2048), (2048, 3072), (2048, 2048), (2048, 16384), (8192, 2048)]
M3_PRODUCTS = [(2560, 4096), (2048, 2560), (2560, 20480), (10240, 2560)]


def decodes(sequences: tuple[int, ...] = (1, 32, 256)) -> Iterator[Case]:
    for n in sequences:
        for model, shape in (("M1", M1_ATTENTION), ("M2", M2_ATTENTION), ("M3", M3_FULL), ("M3w", M3_WINDOW)):
            yield shape.case(model, f"decode {n}x1152", n, 1151)
        yield Delta().rule(f"decode {n} fp32", n, (), FP32)
        yield Delta().step(f"decode {n} fp32", n, FP32)
        yield Delta().step(f"decode {n} bf16", n, BF16)
        for state in (FP32, BF16):
            name = "fp32" if state == FP32 else "bf16"
            yield Mamba().ssd(f"decode {n} {name}", n, (), state)
            yield Mamba().step(f"decode {n} {name}", n, state)
        yield convolution("M1", f"decode {n}", Delta().channels, n, ())
        yield from elementwise("M1", n, 2560, 9216)
        yield heads("M1", n, M1_ATTENTION, 64)
        yield gated_norm("M1", n, 4096, 128, True)
        yield gated_norm("M2", n, 4096, 4096, False)
        yield experts(n)
        for kind in ("greedy", "open", "limited"):
            yield sampling("M1", n, 248320, kind)
    for model, shape in (("M1", M1_ATTENTION), ("M2", M2_ATTENTION), ("M3", M3_FULL)):
        yield shape.case(model, "decode 1x8192", 1, 8191)
        yield shape.case(model, "decode 32x4096", 32, 4095)


def products(rows: tuple[int, ...] = (1, 32, 64)) -> Iterator[Case]:
    for n in rows:
        for model, shapes in (("M1", M1_PRODUCTS), ("M2", M2_PRODUCTS), ("M3", M3_PRODUCTS)):
            for ins, outs in shapes:
                yield product(model, n, ins, outs)
        yield product("M1", n, 2560, 248320, head=True)
        yield product("M2", n, 2048, 100352, head=True)


def prefills() -> Iterator[Case]:
    loads = {"1x1024": (Part(0, 1024),), "8x1024": (Part(0, 1024),) * 8, "1x8192": (Part(0, 8192),)}
    for label, parts in loads.items():
        for model, shape in (("M1", M1_ATTENTION), ("M2", M2_ATTENTION), ("M3", M3_FULL), ("M3w", M3_WINDOW)):
            yield shape.case(model, label, 0, 0, parts)
        yield Delta().rule(label, 0, parts, FP32)
        yield Mamba().ssd(label, 0, parts, FP32)
        yield convolution("M1", label, Delta().channels, 0, parts)
    for model, shape in (("M1", M1_ATTENTION), ("M2", M2_ATTENTION)):
        yield shape.case(model, "128 after 8192", 0, 0, (Part(8192, 128),))
    yield from elementwise("M1", 8192, 2560, 9216)
    yield scores("M1", 64, 248320)
    yield copies(24, 2 << 20)
    yield copies(512, 64 << 10)


GROUPS: dict[str, Callable[[], Iterator[Case]]] = {"decode": decodes, "linear": products, "prefill": prefills}
