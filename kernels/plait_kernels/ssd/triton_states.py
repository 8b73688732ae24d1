# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
"""The states between rows of longer pieces: what each row adds to a zero state, one beside the other, and then the sums
of these, one after another."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from plait_kernels.ssd.call import Call
from plait_kernels.ssd.triton_block import added_by, read_block
from plait_kernels.tables import ScanTable
from plait_kernels.triton_math import power_of_two


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
        value, write, size, high, low, total_high, total_low = read_block(
            x, dt + head, b, start, stop, p, n, has_p, has_n, rate, bias,
            x_token, dt_token, b_token, dt_low, dt_high, BLOCK,
        )  # fmt: skip
        state = state * tl.exp(total_high + total_low)
        state += added_by(value, write, size, high, low, total_high, total_low, PRECISION)
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


def states_before(call: Call, table: ScanTable, config: dict[str, Any]) -> Tensor:
    """fp32 ``[rows, heads, head_dim, state_dim]``: the state before each row. Slots are left with the last one, and
    checkpoints are written."""
    head_dim, state_dim, per_group = call.sizes
    heads, device, rows = call.x.shape[1], call.x.device, len(table.rows)
    states = torch.empty(rows, heads, head_dim, state_dim, dtype=torch.float32, device=device)
    totals = torch.empty(rows, heads, dtype=torch.float32, device=device)
    _ssd_rows[(rows, heads, triton.cdiv(head_dim, config["P"]))](
        call.x,
        call.dt,
        call.a_log,
        call.b,
        call.dt_bias,
        table.rows,
        states,
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
        states,
        totals,
        heads,
        size,
        call.view.stride(0),
        EMITTING=call.slots.emits is not None,
        BLOCK=block,
        num_warps=4,
    )
    return states
