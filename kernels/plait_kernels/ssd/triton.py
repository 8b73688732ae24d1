# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
"""``ssd`` as Triton kernels: one step of every decode, and the chunked form (section 6 of the paper) for longer pieces.

A program of the chunked form walks a sequence block by block with its part of the state in registers. Where that leaves
the GPU idle (few sequences, long ones), rows are cut and three launches take turns: what each row adds to a zero state,
the states between rows, and then all rows side by side, each from the state before it.
"""

import itertools
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from plait_kernels.early_start import starts_early, wait_for_others
from plait_kernels.segments import Segments
from plait_kernels.storage import Slots
from plait_kernels.tables import scan_table
from plait_kernels.triton_math import (
    SMALLEST_LOG_DECAY,
    TENSOR_CORE_ROWS,
    decay_between,
    dense_last,
    dot,
    dot_precision,
    multiprocessors,
    power_of_two,
    running_log,
    softplus,
)
from plait_kernels.tuning import Tunable, bucket

STEP = Tunable(
    "ssd_step",
    {"P": 64, "num_warps": 4},
    tuple({"P": p, "num_warps": w} for p in (16, 32, 64) for w in (1, 2, 4, 8)),
)
SCAN = Tunable(
    "ssd_scan",
    {"BLOCK": 32, "P": 32, "num_warps": 4, "num_stages": 2},
    tuple(
        {"BLOCK": b, "P": p, "num_warps": w, "num_stages": s}
        for b in (32, 64, 128)
        for p in (32, 64)
        for w in (4, 8)
        for s in (2, 3)
    ),
)
LEAST_CUT_ROW = 256
"""Rows are not cut shorter than this: below it, states cost more to write than tokens to read."""


@triton.jit
def step_size_of(dt, bias, low, high):
    return tl.minimum(tl.maximum(softplus(dt + bias), low), high)


@triton.jit(do_not_specialize_on_alignment=["slots"])
def _ssd_step(
    x,
    dt,
    a_log,
    b,
    c,
    d,
    dt_bias,
    view,
    slots,
    out,
    head_dim,
    state_dim,
    per_group,
    x_token,
    x_head,
    dt_token,
    b_token,
    b_group,
    c_token,
    c_group,
    view_stride,
    dt_low,
    dt_high,
    P: tl.constexpr,
    N: tl.constexpr,
    EARLY: tl.constexpr,
):
    wait_for_others(EARLY)
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    heads = tl.num_programs(1)
    p = tl.program_id(2) * P + tl.arange(0, P)
    n = tl.arange(0, N)
    has_p, has_n = p < head_dim, n < state_dim
    group = head // per_group

    place = (
        view + tl.load(slots + row).to(tl.int64) * view_stride + (head * head_dim + p)[:, None] * state_dim + n[None, :]
    )
    inside = has_p[:, None] & has_n[None, :]
    state = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    raw = tl.load(dt + row * dt_token + head).to(tl.float32)
    size = step_size_of(raw, tl.load(dt_bias + head).to(tl.float32), dt_low, dt_high)
    decay = tl.exp(-tl.exp(tl.load(a_log + head).to(tl.float32)) * size)
    value = tl.load(x + row * x_token + head * x_head + p, mask=has_p, other=0.0).to(tl.float32)
    write = tl.load(b + row * b_token + group * b_group + n, mask=has_n, other=0.0).to(tl.float32)
    read = tl.load(c + row * c_token + group * c_group + n, mask=has_n, other=0.0).to(tl.float32)
    state = state * decay + (value * size)[:, None] * write[None, :]
    tl.store(place, state.to(view.dtype.element_ty), mask=inside)
    y = tl.sum(state * read[None, :], axis=1) + tl.load(d + head).to(tl.float32) * value
    tl.store(out + (row * heads + head) * head_dim + p, y.to(out.dtype.element_ty), mask=has_p)


@triton.jit
def _block(
    x,
    dt,
    b,
    start,
    stop,
    p,
    n,
    has_p,
    has_n,
    rate,
    bias,
    x_token,
    dt_token,
    b_token,
    dt_low,
    dt_high,
    BLOCK: tl.constexpr,
):
    """A block's inputs: x ``[BLOCK, P]``, b ``[BLOCK, N]``, step sizes, and running log decays. Dead tokens are zeros:
    no input and no decay, so the state behind the block is that of its last live token."""
    t = start + tl.arange(0, BLOCK)
    live = t < stop
    t = t.to(tl.int64)
    value = tl.load(x + (t * x_token)[:, None] + p[None, :], mask=live[:, None] & has_p[None, :], other=0.0)
    write = tl.load(b + (t * b_token)[:, None] + n[None, :], mask=live[:, None] & has_n[None, :], other=0.0)
    raw = tl.load(dt + t * dt_token, mask=live, other=0.0).to(tl.float32)
    size = tl.where(live, step_size_of(raw, bias, dt_low, dt_high), 0.0)
    high, low, total_high, total_low = running_log(tl.maximum(rate * size, SMALLEST_LOG_DECAY))
    return value, write, size, high, low, total_high, total_low


@triton.jit
def _added(value, write, size, high, low, total_high, total_low, PRECISION: tl.constexpr):
    """What a block adds to the state ``[P, N]``."""
    to_end = tl.exp((total_high - high) + (total_low - low))
    scaled = value.to(tl.float32) * (size * to_end)[:, None]
    return dot(tl.trans(scaled).to(value.dtype), write, PRECISION)


@triton.jit(do_not_specialize_on_alignment=["rows"])
def _ssd_rows(
    x,
    dt,
    a_log,
    b,
    dt_bias,
    rows,
    added,  # fp32 [rows, heads, head_dim, state_dim]
    totals,  # fp32 [rows, heads]
    head_dim,
    state_dim,
    per_group,
    x_token,
    x_head,
    dt_token,
    b_token,
    b_group,
    dt_low,
    dt_high,
    BLOCK: tl.constexpr,
    P: tl.constexpr,
    N: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """What each row adds to a zero state, and the sum of its log decays."""
    row = tl.program_id(0)
    head = tl.program_id(1)
    heads = tl.num_programs(1)
    p = tl.program_id(2) * P + tl.arange(0, P)
    n = tl.arange(0, N)
    has_p, has_n = p < head_dim, n < state_dim
    rate = -tl.exp(tl.load(a_log + head).to(tl.float32))
    bias = tl.load(dt_bias + head).to(tl.float32)
    x += head.to(tl.int64) * x_head
    b += (head // per_group).to(tl.int64) * b_group
    state = tl.zeros((P, N), tl.float32)
    sum_of_logs = 0.0
    stop = tl.load(rows + row * 5 + 1)
    for start in range(tl.load(rows + row * 5), stop, BLOCK):
        value, write, size, high, low, total_high, total_low = _block(
            x, dt + head, b, start, stop, p, n, has_p, has_n, rate, bias,
            x_token, dt_token, b_token, dt_low, dt_high, BLOCK,
        )  # fmt: skip
        state = state * tl.exp(total_high + total_low)
        state += _added(value, write, size, high, low, total_high, total_low, PRECISION)
        sum_of_logs += total_high + total_low
    at = (row.to(tl.int64) * heads + head) * head_dim
    inside = has_p[:, None] & has_n[None, :]
    tl.store(added + (at + p)[:, None] * state_dim + n[None, :], state, mask=inside)
    if tl.program_id(2) == 0:
        tl.store(totals + row * heads + head, sum_of_logs)


@triton.jit(do_not_specialize_on_alignment=["slots", "emits", "rows", "groups"])
def _ssd_between(
    view,
    slots,
    emits,
    rows,
    groups,
    added,
    totals,
    heads,
    head_size,  # values of one head's state
    view_stride,
    EMITTING: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Replaces what each row adds by the state before it, emits, and leaves the last state in the slot."""
    group = tl.program_id(0)
    head = tl.program_id(1)
    at = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    live = at < head_size
    inside = head.to(tl.int64) * head_size + at
    own = view + tl.load(slots + tl.load(groups + group * 3 + 2)).to(tl.int64) * view_stride + inside
    state = tl.load(own, mask=live, other=0.0).to(tl.float32)
    for row in range(tl.load(groups + group * 3), tl.load(groups + group * 3 + 1)):
        place = added + tl.cast(row, tl.int64) * heads * head_size + inside
        more = tl.load(place, mask=live, other=0.0)
        tl.store(place, state, mask=live)
        state = state * tl.exp(tl.load(totals + row * heads + head)) + more
        if EMITTING:
            chunk = tl.load(rows + row * 5 + 2)
            if chunk >= 0:
                target = tl.load(emits + chunk)
                if target >= 0:
                    tl.store(
                        view + target.to(tl.int64) * view_stride + inside, state.to(view.dtype.element_ty), mask=live
                    )
    tl.store(own, state.to(view.dtype.element_ty), mask=live)


@triton.jit(do_not_specialize_on_alignment=["slots", "emits", "rows", "groups"])
def _ssd_scan(
    x,
    dt,
    a_log,
    b,
    c,
    d,
    dt_bias,
    view,
    slots,
    emits,
    rows,
    groups,
    before,
    out,
    head_dim,
    state_dim,
    per_group,
    x_token,
    x_head,
    dt_token,
    b_token,
    b_group,
    c_token,
    c_group,
    view_stride,
    dt_low,
    dt_high,
    CUT: tl.constexpr,
    EMITTING: tl.constexpr,
    BLOCK: tl.constexpr,
    P: tl.constexpr,
    N: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """A sequence's rows one after another; with ``CUT``, one row from the state before it."""
    group = tl.program_id(0)
    head = tl.program_id(1)
    heads = tl.num_programs(1)
    p = tl.program_id(2) * P + tl.arange(0, P)
    n = tl.arange(0, N)
    has_p, has_n = p < head_dim, n < state_dim
    inside = has_p[:, None] & has_n[None, :]
    tile = (head * head_dim + p)[:, None] * state_dim + n[None, :]
    rate = -tl.exp(tl.load(a_log + head).to(tl.float32))
    bias = tl.load(dt_bias + head).to(tl.float32)
    skip = tl.load(d + head).to(tl.float32)
    x += head.to(tl.int64) * x_head
    b += (head // per_group).to(tl.int64) * b_group
    c += (head // per_group).to(tl.int64) * c_group
    if CUT:
        first = group
        end = group + 1
        own = before + group.to(tl.int64) * heads * head_dim * state_dim + tile
    else:
        first = tl.load(groups + group * 3)
        end = tl.load(groups + group * 3 + 1)
        own = view + tl.load(slots + tl.load(groups + group * 3 + 2)).to(tl.int64) * view_stride + tile
    state = tl.load(own, mask=inside, other=0.0).to(tl.float32)

    for row in range(first, end):
        stop = tl.load(rows + row * 5 + 1)
        for start in range(tl.load(rows + row * 5), stop, BLOCK):
            value, write, size, high, low, total_high, total_low = _block(
                x, dt + head, b, start, stop, p, n, has_p, has_n, rate, bias,
                x_token, dt_token, b_token, dt_low, dt_high, BLOCK,
            )  # fmt: skip
            t = start + tl.arange(0, BLOCK)
            live = t < stop
            t = t.to(tl.int64)
            read = tl.load(c + (t * c_token)[:, None] + n[None, :], mask=live[:, None] & has_n[None, :], other=0.0)
            scores = dot(read, tl.trans(write), PRECISION) * decay_between(high, low, BLOCK)
            sized = (value.to(tl.float32) * size[:, None]).to(value.dtype)
            y = dot(scores.to(value.dtype), sized, PRECISION)
            y += dot(read, tl.trans(state).to(read.dtype), PRECISION) * tl.exp(high + low)[:, None]
            y += skip * value.to(tl.float32)
            place = out + ((t * heads + head) * head_dim)[:, None] + p[None, :]
            tl.store(place, y.to(out.dtype.element_ty), mask=live[:, None] & has_p[None, :])
            state = state * tl.exp(total_high + total_low)
            state += _added(value, write, size, high, low, total_high, total_low, PRECISION)
        if EMITTING:
            chunk = tl.load(rows + row * 5 + 2)
            if chunk >= 0:
                target = tl.load(emits + chunk)
                if target >= 0:
                    place = view + target.to(tl.int64) * view_stride + tile
                    tl.store(place, state.to(view.dtype.element_ty), mask=inside)
    if not CUT:
        tl.store(own, state.to(view.dtype.element_ty), mask=inside)


@dataclass(frozen=True)
class _Call:
    """The tensors of one call, with strides as the kernels take them."""

    x: Tensor
    dt: Tensor
    a_log: Tensor
    b: Tensor
    c: Tensor
    d: Tensor
    dt_bias: Tensor
    view: Tensor
    slots: Slots
    segments: Segments
    dt_limit: tuple[float, float]
    out: Tensor

    @property
    def sizes(self) -> tuple[int, int, int]:
        return self.x.shape[2], self.b.shape[2], self.x.shape[1] // self.b.shape[1]

    @property
    def input_strides(self) -> tuple[int, ...]:
        return (
            self.x.stride(0),
            self.x.stride(1),
            self.dt.stride(0),
            self.b.stride(0),
            self.b.stride(1),
        )

    @property
    def emits(self) -> Tensor:
        return self.slots.rows if self.slots.emits is None else self.slots.emits


def ssd(
    x: Tensor,
    dt: Tensor,
    a_log: Tensor,
    b: Tensor,
    c: Tensor,
    d: Tensor,
    dt_bias: Tensor,
    view: Tensor,
    slots: Slots,
    segments: Segments,
    *,
    dt_limit: tuple[float, float],
) -> Tensor:
    x, dt, b, c = dense_last(x), dense_last(dt), dense_last(b), dense_last(c)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    call = _Call(x, dt, a_log, b, c, d, dt_bias, view, slots, segments, dt_limit, out)
    if segments.decodes:
        _step(call)
    if segments.chunks:
        _scan(call)
    return out


def _step(call: _Call) -> None:
    head_dim, state_dim, per_group = call.sizes
    heads, n = call.x.shape[1], power_of_two(state_dim)
    config = dict(STEP.config(call.x.device, bucket(call.segments.decodes), heads, head_dim, state_dim))
    config["P"] = min(config["P"], power_of_two(head_dim))
    _ssd_step[(call.segments.decodes, heads, triton.cdiv(head_dim, config["P"]))](
        call.x,
        call.dt,
        call.a_log,
        call.b,
        call.c,
        call.d,
        call.dt_bias,
        call.view,
        call.slots.rows,
        call.out,
        head_dim,
        state_dim,
        per_group,
        *call.input_strides,
        call.c.stride(0),
        call.c.stride(1),
        call.view.stride(0),
        *call.dt_limit,
        N=n,
        **config,
        **starts_early(call.x.device),
    )


def _scan(call: _Call) -> None:
    head_dim, state_dim, per_group = call.sizes
    heads, device = call.x.shape[1], call.x.device
    # Tensor cores multiply bf16; everything else is multiplied as fp32, fp16 because a state may be too large for it.
    wide = call.x.dtype != torch.bfloat16
    x, b, c = (u.float() if wide else u for u in (call.x, call.b, call.c))
    call = _Call(**{**vars(call), "x": x, "b": b, "c": c})
    config: dict[str, Any] = dict(SCAN.config(device, heads, head_dim, state_dim, int(wide)))
    config["P"] = max(TENSOR_CORE_ROWS, min(config["P"], power_of_two(head_dim)))
    config["N"] = power_of_two(state_dim, TENSOR_CORE_ROWS)
    config["PRECISION"] = dot_precision(x.dtype)
    parts = triton.cdiv(head_dim, config["P"])
    longest = _cut(call.segments, heads * parts, multiprocessors(device), config["BLOCK"])
    table = scan_table(call.segments, config["BLOCK"], longest)
    inputs = (call.x, call.dt, call.a_log, call.b)
    before = call.x
    if longest is not None:
        before = torch.empty(len(table.rows), heads, head_dim, state_dim, dtype=torch.float32, device=device)
        totals = torch.empty(len(table.rows), heads, dtype=torch.float32, device=device)
        _ssd_rows[(len(table.rows), heads, parts)](
            *inputs,
            call.dt_bias,
            table.rows,
            before,
            totals,
            head_dim,
            state_dim,
            per_group,
            *call.input_strides,
            *call.dt_limit,
            **config,
        )
        size = head_dim * state_dim
        block = min(1024, power_of_two(size))
        _ssd_between[(len(table.groups), heads, triton.cdiv(size, block))](
            call.view,
            call.slots.rows,
            call.emits,
            table.rows,
            table.groups,
            before,
            totals,
            heads,
            size,
            call.view.stride(0),
            EMITTING=call.slots.emits is not None,
            BLOCK=block,
            num_warps=4,
        )
    _ssd_scan[(len(table.rows if longest else table.groups), heads, parts)](
        *inputs,
        call.c,
        call.d,
        call.dt_bias,
        call.view,
        call.slots.rows,
        call.emits,
        table.rows,
        table.groups,
        before,
        call.out,
        head_dim,
        state_dim,
        per_group,
        *call.input_strides,
        call.c.stride(0),
        call.c.stride(1),
        call.view.stride(0),
        *call.dt_limit,
        CUT=longest is not None,
        EMITTING=call.slots.emits is not None and longest is None,
        **config,
    )


def _cut(segments: Segments, programs_per_row: int, processors: int, block: int) -> int | None:
    """The longest row, where whole sequences would leave most of the GPU idle for long; None to leave rows as they
    are."""
    tokens = segments.tokens - segments.decodes
    sequences, longest = 1, tokens
    if segments.room is None:  # else they vary from replay to replay
        sequences = len({chunk.sequence for chunk in segments.chunks})
        longest = max(b - a for a, b in itertools.pairwise(segments.starts_host[segments.decodes :]))
    # As long as one sequence takes alone, against what all take when spread evenly over the GPU.
    if longest < 2 * LEAST_CUT_ROW or sequences * programs_per_row >= 2 * processors:
        return None
    wanted = max(1, 4 * processors // programs_per_row)
    return max(LEAST_CUT_ROW, -(-tokens // (wanted * block)) * block)
