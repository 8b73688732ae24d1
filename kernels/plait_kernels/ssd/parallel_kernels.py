# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,no-any-return"
"""Kernels of the chunked form (section 6 of the paper) with all blocks side by side. Dead tokens are zeros.

``logs`` fp32 ``[blocks, heads, kinds, BLOCK]``, to base 2: what a token is multiplied by where it enters the state
behind its block (no logarithm); the sum of log decays since the block's start, as it is for reading; the same less the
log of the token's step size, for what it writes. Exact products have two kinds more: what fp32 lost of the sums.
``wholes`` fp32 ``[blocks, heads]``: the decay of a whole block.
``before`` ``[blocks, heads, P, N]``: the state before each block, in the dtype of the products.
"""

import triton
import triton.language as tl

from plait_kernels.early_start import wait_for_others
from plait_kernels.ssd.triton_block import step_size_of
from plait_kernels.triton_math import INTERPRETED, LOG2_E, SMALLEST_LOG_DECAY, dot

GREATEST_LOG = tl.constexpr(126.0)
"""To base 2. What is above the diagonal stays finite with it, so that zeros there stay zeros."""


@triton.jit
def _onto(total, a, b, PRECISION: tl.constexpr):
    """``total + a @ b`` summed in fp32."""
    if INTERPRETED:
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, total, input_precision=PRECISION)


@triton.jit
def _exp2(x):
    """2^x; 0 where that is less than 2^-126, for which ``tl.exp2`` takes three instructions more."""
    if INTERPRETED:
        return tl.exp2(x)
    return tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)


@triton.jit(do_not_specialize_on_alignment=["blocks"])
def _ssd_decays(
    dt,
    a_log,
    dt_bias,
    blocks,
    logs,
    wholes,
    heads,
    dt_token,
    dt_low,
    dt_high,
    BLOCK: tl.constexpr,
    HEADS: tl.constexpr,
    EXACT: tl.constexpr,
    EARLY: tl.constexpr,
):
    """A program for each block and ``HEADS`` heads. Sums are taken in fp64: a difference of two then keeps the small
    decays behind a large one."""
    wait_for_others(EARLY)
    block = tl.program_id(0)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    token = tl.arange(0, BLOCK)
    start = tl.load(blocks + block * 2)
    live = (token < tl.load(blocks + block * 2 + 1) - start)[:, None] & (head < heads)[None, :]
    place = dt + start.to(tl.int64) * dt_token + (token * dt_token)[:, None] + head[None, :]
    raw = tl.load(place, mask=live, other=0.0).to(tl.float32)
    bias = tl.load(dt_bias + head, mask=head < heads, other=0.0).to(tl.float32)
    rate = -tl.exp(tl.load(a_log + head, mask=head < heads, other=0.0).to(tl.float32))
    size = tl.where(live, step_size_of(raw, bias[None, :], dt_low, dt_high), 0.0)
    log_decay = (tl.maximum(rate[None, :] * size, SMALLEST_LOG_DECAY) * LOG2_E).to(tl.float64)
    reading = tl.cumsum(log_decay, 0)
    total = tl.sum(log_decay, 0)
    writes = size > 0.0
    writing = reading - tl.where(writes, tl.log2(tl.where(writes, size, 1.0)), 0.0).to(tl.float64)
    behind = _exp2((total[None, :] - reading).to(tl.float32)) * size

    kinds: tl.constexpr = 5 if EXACT else 3
    at = block.to(tl.int64) * heads + head
    own = logs + (at * (kinds * BLOCK))[None, :] + token[:, None]
    inside = (head < heads)[None, :] & (token < BLOCK)[:, None]
    tl.store(own, behind, mask=inside)
    tl.store(own + BLOCK, reading.to(tl.float32), mask=inside)
    tl.store(own + 2 * BLOCK, tl.where(writes, writing.to(tl.float32), float("inf")), mask=inside)
    if EXACT:
        tl.store(own + 3 * BLOCK, _lost(reading), mask=inside)
        tl.store(own + 4 * BLOCK, _lost(writing), mask=inside)
    tl.store(wholes + at, _exp2(total.to(tl.float32)), mask=head < heads)


@triton.jit
def _lost(exact):
    """What fp32 loses of an fp64 number."""
    return (exact - exact.to(tl.float32).to(tl.float64)).to(tl.float32)


@triton.jit(do_not_specialize_on_alignment=["slots", "emits", "rows", "groups"])
def _ssd_states(
    x,
    b,
    logs,
    wholes,
    before,
    view,
    slots,
    emits,
    rows,
    groups,
    head_dim,
    state_dim,
    per_group,
    x_token,
    x_head,
    b_token,
    b_group,
    view_stride,
    EMITTING: tl.constexpr,
    BLOCK: tl.constexpr,
    P: tl.constexpr,
    ALL_N: tl.constexpr,
    N: tl.constexpr,
    KINDS: tl.constexpr,
    PRECISION: tl.constexpr,
    EARLY: tl.constexpr,
):
    """A program for each sequence, head and N of the state's columns walks the blocks: state before each, emitted ones,
    and the last one. The turned inputs are scaled in registers, as the left operand of the product."""
    wait_for_others(EARLY)
    group = tl.program_id(0)
    head = tl.program_id(1)
    heads = tl.num_programs(1)
    p = tl.arange(0, P)
    n = tl.program_id(2) * N + tl.arange(0, N)
    token = tl.arange(0, BLOCK)
    has_p, has_n = p < head_dim, n < state_dim
    inside = has_p[:, None] & has_n[None, :]
    tile = (head * head_dim + p)[:, None] * state_dim + n[None, :]
    own = view + tl.load(slots + tl.load(groups + group * 3 + 2)).to(tl.int64) * view_stride + tile
    state = tl.load(own, mask=inside, other=0.0).to(tl.float32)
    x += head.to(tl.int64) * x_head
    b += (head // per_group).to(tl.int64) * b_group
    kind: tl.constexpr = before.dtype.element_ty

    for row in range(tl.load(groups + group * 3), tl.load(groups + group * 3 + 1)):
        first = tl.load(rows + row * 5)
        stop = tl.load(rows + row * 5 + 1)
        block = tl.load(rows + row * 5 + 4)
        next_whole = tl.load(wholes + block * heads + head)
        for start in range(first, stop, BLOCK):
            at = (block + (start - first) // BLOCK).to(tl.int64) * heads + head
            whole = next_whole
            next_whole = tl.load(wholes + at + heads, mask=start + BLOCK < stop, other=0.0)
            tl.store(before + at * (P * ALL_N) + (p[:, None] * ALL_N + n[None, :]), state.to(kind))
            begin = tl.cast(start, tl.int64)
            live = token < stop - start
            behind = tl.load(logs + at * (KINDS * BLOCK) + token)
            turned = tl.load(
                x + begin * x_token + ((token * x_token)[None, :] + p[:, None]),
                mask=live[None, :] & has_p[:, None],
                other=0.0,
            )
            write = tl.load(
                b + begin * b_token + ((token * b_token)[:, None] + n[None, :]),
                mask=live[:, None] & has_n[None, :],
                other=0.0,
            )
            scaled = (turned.to(tl.float32) * behind[None, :]).to(kind)
            state = _onto(state * whole, scaled, write, PRECISION)
        if EMITTING:
            chunk = tl.load(rows + row * 5 + 2)
            if chunk >= 0:
                target = tl.load(emits + chunk)
                if target >= 0:
                    place = view + target.to(tl.int64) * view_stride + tile
                    tl.store(place, state.to(view.dtype.element_ty), mask=inside)
    tl.store(own, state.to(view.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["parts", "each"], do_not_specialize_on_alignment=["blocks"])
def _ssd_outputs(
    x,
    b,
    c,
    d,
    logs,
    before,
    blocks,
    out,
    head_dim,
    state_dim,
    per_group,
    parts,
    each,
    x_token,
    x_head,
    b_token,
    b_group,
    c_token,
    c_group,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    P: tl.constexpr,
    N: tl.constexpr,
    KINDS: tl.constexpr,
    PRECISION: tl.constexpr,
    EARLY: tl.constexpr,
):
    """A program for ``each`` heads of a group and ROWS tokens of a block: the products of what these read with what the
    block writes are the same for all heads, and stay in registers.

    The last blocks come first: some of their inputs and states are in the cache yet."""
    wait_for_others(EARLY)
    group = tl.program_id(0) // parts
    heads = tl.num_programs(0) // parts * per_group
    block = tl.num_programs(2) - 1 - tl.program_id(2)
    token = tl.arange(0, BLOCK)
    tile = tl.program_id(1) * ROWS
    row = tile + tl.arange(0, ROWS)
    p = tl.arange(0, P)
    n = tl.arange(0, N)
    start = tl.load(blocks + block * 2)
    count = tl.load(blocks + block * 2 + 1) - start
    has_p, has_n = p < head_dim, n < state_dim
    begin = start.to(tl.int64)
    c += begin * c_token + group * c_group
    b += begin * b_token + group * b_group
    x += begin * x_token
    out += begin * heads * head_dim
    read = tl.load(c + ((row * c_token)[:, None] + n[None, :]), mask=(row < count)[:, None] & has_n[None, :], other=0.0)
    write = tl.load(
        b + ((token * b_token)[:, None] + n[None, :]), mask=(token < count)[:, None] & has_n[None, :], other=0.0
    )
    scores = tl.where(row[:, None] >= token[None, :], dot(read, tl.trans(write), PRECISION), 0.0)

    kind: tl.constexpr = before.dtype.element_ty
    first = group * per_group + tl.program_id(0) % parts * each
    end = tl.minimum(first + each, (group + 1) * per_group)
    if tile >= count:  # nothing there, as in what is left over of a table
        end = first
    for head in range(first, end):
        at = block.to(tl.int64) * heads + head
        of_head = logs + at * (KINDS * BLOCK)
        value = tl.load(
            x + head * x_head + ((token * x_token)[:, None] + p[None, :]),
            mask=(token < count)[:, None] & has_p[None, :],
            other=0.0,
        )
        state = tl.load(before + at * (P * N) + (p[:, None] * N + n[None, :]))
        mask = (row < count)[:, None] & has_p[None, :]
        skipped = value
        if ROWS != BLOCK:
            skipped = tl.load(x + head * x_head + ((row * x_token)[:, None] + p[None, :]), mask=mask, other=0.0)
        y = dot(read, tl.trans(state), PRECISION)
        skip = tl.load(d + head).to(tl.float32)
        reading = tl.load(of_head + BLOCK + row)
        span = reading[:, None] - tl.load(of_head + 2 * BLOCK + token)[None, :]
        if PRECISION == "ieee":
            low = tl.load(of_head + 3 * BLOCK + row)
            span += low[:, None] - tl.load(of_head + 4 * BLOCK + token)[None, :]
            reading += low
        decayed = (scores * _exp2(tl.minimum(span, GREATEST_LOG))).to(kind)
        y = _onto(y * _exp2(reading)[:, None], decayed, value, PRECISION)
        y += skip * skipped.to(tl.float32)
        place = out + head * head_dim + ((row * heads * head_dim)[:, None] + p[None, :])
        tl.store(place, y.to(out.dtype.element_ty), mask=mask)
