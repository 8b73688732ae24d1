# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
"""Longer pieces in the chunked form (section 6 of the paper).

A program walks a sequence block by block with its part of the state in registers. Where that leaves the GPU idle (few
sequences, long ones), rows are cut and three launches take turns: what each row adds to a zero state, the states
between rows, and then all rows side by side, each from the state before it.
"""

import itertools
from typing import Any

import torch
import triton
import triton.language as tl

from plait_kernels.segments import Segments
from plait_kernels.ssd.call import Call
from plait_kernels.ssd.parallel import run_parallel
from plait_kernels.ssd.triton_block import added_by, read_block
from plait_kernels.ssd.triton_states import states_before
from plait_kernels.tables import scan_table
from plait_kernels.triton_math import (
    TENSOR_CORE_ROWS,
    decay_between,
    dot,
    dot_precision,
    multiprocessors,
    power_of_two,
)
from plait_kernels.tuning import Tunable

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
FORM = Tunable("ssd_form", {"PARALLEL": 0}, ({"PARALLEL": 0}, {"PARALLEL": 1}))
"""Whether all blocks are computed side by side (``ssd.parallel``)."""
LEAST_CUT_ROW = 256
"""Rows are not cut shorter than this: below it, states cost more to write than tokens to read."""


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
            value, write, size, high, low, total_high, total_low = read_block(
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
            state += added_by(value, write, size, high, low, total_high, total_low, PRECISION)
        if EMITTING:
            chunk = tl.load(rows + row * 5 + 2)
            if chunk >= 0:
                target = tl.load(emits + chunk)
                if target >= 0:
                    place = view + target.to(tl.int64) * view_stride + tile
                    tl.store(place, state.to(view.dtype.element_ty), mask=inside)
    if not CUT:
        tl.store(own, state.to(view.dtype.element_ty), mask=inside)


def run_scan(call: Call) -> None:
    head_dim, state_dim, per_group = call.sizes
    heads, device = call.x.shape[1], call.x.device
    # Tensor cores multiply bf16; everything else is multiplied as fp32, fp16 because a state may be too large for it.
    wide = call.x.dtype != torch.bfloat16
    x, b, c = (u.float() if wide else u for u in (call.x, call.b, call.c))
    call = Call(**{**vars(call), "x": x, "b": b, "c": c})
    key = (heads, head_dim, state_dim, int(wide))
    if FORM.config(device, *key)["PARALLEL"]:
        run_parallel(call)
        return
    config: dict[str, Any] = dict(SCAN.config(device, *key))
    config["P"] = max(TENSOR_CORE_ROWS, min(config["P"], power_of_two(head_dim)))
    config["N"] = power_of_two(state_dim, TENSOR_CORE_ROWS)
    config["PRECISION"] = dot_precision(x.dtype)
    parts = triton.cdiv(head_dim, config["P"])
    longest = _cut(call.segments, heads * parts, multiprocessors(device), config["BLOCK"])
    table = scan_table(call.segments, config["BLOCK"], longest)
    before = call.x if longest is None else states_before(call, table, config)
    _ssd_scan[(len(table.rows if longest else table.groups), heads, parts)](
        call.x,
        call.dt,
        call.a_log,
        call.b,
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
