# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
"""Outputs of all blocks side by side, each from the state before it."""

import triton
import triton.language as tl

from plait_kernels.early_start import wait_for_others
from plait_kernels.triton_math import dot, fast_exp2, onto

GREATEST_LOG = tl.constexpr(126.0)
"""To base 2. What is above the diagonal stays finite with it, so that zeros there stay zeros."""


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
    """A program for ``each`` heads of a group and ROWS tokens of a block, which are all of it or half.

    The last blocks come first: some of their inputs and states are in the cache yet."""
    wait_for_others(EARLY)
    group = tl.program_id(0) // parts
    heads = tl.num_programs(0) // parts * per_group
    block = tl.num_programs(2) - 1 - tl.program_id(2)
    tile = (tl.num_programs(1) - 1 - tl.program_id(1)) * ROWS  # those that see most come first
    start = tl.load(blocks + block * 2)
    count = tl.load(blocks + block * 2 + 1) - start
    begin = start.to(tl.int64)
    c += begin * c_token + group * c_group
    b += begin * b_token + group * b_group
    x += begin * x_token
    out += begin * heads * head_dim
    logs += block.to(tl.int64) * heads * (KINDS * BLOCK)
    before += block.to(tl.int64) * heads * (P * N)
    first = group * per_group + tl.program_id(0) % parts * each
    end = tl.minimum(first + each, (group + 1) * per_group)
    if tile >= count:  # nothing there, as in what is left over of a table
        end = first
    if tile == 0:
        _tile(
            x, b, c, d, logs, before, out, tile, count, first, end, heads, head_dim, state_dim,
            x_token, x_head, b_token, c_token, BLOCK, ROWS, ROWS, P, N, KINDS, PRECISION,
        )  # fmt: skip
    elif ROWS != BLOCK:
        _tile(
            x, b, c, d, logs, before, out, tile, count, first, end, heads, head_dim, state_dim,
            x_token, x_head, b_token, c_token, BLOCK, ROWS, BLOCK, P, N, KINDS, PRECISION,
        )  # fmt: skip


@triton.jit
def _tile(
    x,
    b,
    c,
    d,
    logs,
    before,
    out,
    tile,
    count,
    first,
    end,
    heads,
    head_dim,
    state_dim,
    x_token,
    x_head,
    b_token,
    c_token,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    SEEN: tl.constexpr,
    P: tl.constexpr,
    N: tl.constexpr,
    KINDS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Rows from ``tile`` on, the last of the SEEN tokens that they see: the products of what they read with what those
    write are the same for all heads, and stay in registers."""
    row = tile + tl.arange(0, ROWS)
    token = tl.arange(0, SEEN)
    p = tl.arange(0, P)
    n = tl.arange(0, N)
    has_p = (p < head_dim)[None, :]
    of_rows = (row < count)[:, None] & has_p
    # Where there is no token the last one is read again, without weight.
    of_x = (tl.minimum(token, count - 1) * x_token)[:, None] + p[None, :]
    has_n = (n < state_dim)[None, :]
    read = tl.load(c + ((row * c_token)[:, None] + n[None, :]), mask=(row < count)[:, None] & has_n, other=0.0)
    write = tl.load(b + ((token * b_token)[:, None] + n[None, :]), mask=(token < count)[:, None] & has_n, other=0.0)
    scores = tl.where(row[:, None] >= token[None, :], dot(read, tl.trans(write), PRECISION), 0.0)
    kind: tl.constexpr = before.dtype.element_ty
    for head in range(first, end):
        of_head = logs + head * (KINDS * BLOCK)
        value = tl.load(x + head * x_head + of_x, mask=has_p, other=0.0)
        state = tl.load(before + head * (P * N) + (p[:, None] * N + n[None, :]))
        if ROWS == SEEN:
            skipped = value
        else:  # the second half; with another load the inputs would have one buffer more, and programs less room
            _, skipped = tl.split(tl.permute(tl.reshape(value, (2, ROWS, P)), (1, 2, 0)))
        y = dot(read, tl.trans(state), PRECISION)
        skip = tl.load(d + head).to(tl.float32)
        reading = tl.load(of_head + BLOCK + row)
        span = reading[:, None] - tl.load(of_head + 2 * BLOCK + token)[None, :]
        if PRECISION == "ieee":
            low = tl.load(of_head + 3 * BLOCK + row)
            span += low[:, None] - tl.load(of_head + 4 * BLOCK + token)[None, :]
            reading += low
        decayed = (scores * fast_exp2(tl.minimum(span, GREATEST_LOG))).to(kind)
        y = onto(y * fast_exp2(reading)[:, None], decayed, value, PRECISION)
        y += skip * skipped.to(tl.float32)
        place = out + head * head_dim + ((row * heads * head_dim)[:, None] + p[None, :])
        tl.store(place, y.to(out.dtype.element_ty), mask=of_rows)
