# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,no-any-return"
"""Kernels of the chunked form (section 3.3) with a turned state. All tiles are of whole blocks; dead tokens are zeros.

``scales`` fp32 ``[blocks, hv, BLOCK, 2]`` are what a query's product with the state is multiplied by (its length, the
model's factor, the decay since the block's start) and what is written for a key (its length, the decay to the block's
end), so that queries and keys are read as they came. ``wholes`` fp32 ``[blocks, hv]``: the decay of a whole block.
"""

import triton
import triton.language as tl

from plait_kernels.triton_math import (
    LOG2_E,
    MINUS_INFINITY,
    SMALLEST_LOG_DECAY,
    dot,
    fast_exp2,
    onto,
    running_log,
    sigmoid,
    softplus,
)

UNIT_EPS = tl.constexpr(1e-6)
"""Added to the squared length of q and k, as the models were trained."""


@triton.jit
def _inverse(system, BLOCK: tl.constexpr, HALVED: tl.constexpr, PRECISION: tl.constexpr):
    """``(I + system)^-1`` for a strictly lower triangular system ``[BLOCK, BLOCK]``.

    Inverses of diagonal blocks of 1, 2, 4, ... rows, each from the one before: of [[A, 0], [C, D]] it is
    [[A', 0], [-D' C A', D']]. All blocks of a size at once, picked out by a mask; no power of the system is taken,
    which would overflow where keys are alike. ``HALVED`` multiplies fp16, which rounds less than TF32 does and holds
    all of it: keys have unit length and steps are at most 1, so an entry of any of these matrices is a product of a
    key, of maps that lengthen nothing, and of a key.
    """
    i = tl.arange(0, BLOCK)[:, None]
    j = tl.arange(0, BLOCK)[None, :]
    kind: tl.constexpr = tl.float16 if HALVED else tl.float32
    inverse = tl.where(i == j, 1.0, tl.where((i // 2 == j // 2) & (i > j), -system, 0.0))
    system = system.to(kind)
    for level in tl.static_range(1, 8):
        if (1 << level) < BLOCK:
            below = (i // (2 << level) == j // (2 << level)) & ((i >> level) > (j >> level))
            rounded = inverse.to(kind)
            part = dot(tl.where(below, system, tl.zeros_like(system)), rounded, PRECISION)
            # Negated here and not before: with `rounded` itself on the left ptxas runs products one by one.
            inverse = onto(inverse, -rounded, part.to(kind), PRECISION)
    return inverse


@triton.jit
def _inverse_lengths(products, diagonal):
    """Of vectors whose products with one another are given."""
    return tl.math.rsqrt(tl.sum(tl.where(diagonal, products, 0.0), axis=1) + UNIT_EPS)


@triton.jit(do_not_specialize_on_alignment=["blocks"])
def _gdn_turned_solve(
    q,
    k,
    v,
    a,
    b,
    a_log,
    dt_bias,
    blocks,
    erased,  # [blocks, hv, BLOCK, K]
    written,  # [blocks, hv, V, BLOCK]
    scores,  # [blocks, hv, BLOCK, BLOCK]
    scales,
    wholes,
    key_dim,
    value_dim,
    per_key,
    query_scale,
    q_token,
    q_head,
    k_token,
    k_head,
    v_token,
    v_head,
    a_token,
    b_token,
    BLOCK: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """A program for each block and value head."""
    head = tl.program_id(1)
    heads = tl.num_programs(1)
    key_head = head // per_key
    start = tl.load(blocks + tl.program_id(0) * 2)
    live = tl.arange(0, BLOCK) < tl.load(blocks + tl.program_id(0) * 2 + 1) - start
    start = start.to(tl.int64)
    row = tl.arange(0, BLOCK)
    i = tl.arange(0, K)
    j = tl.arange(0, V)
    with_keys = live[:, None] & (i < key_dim)[None, :]
    with_values = live[:, None] & (j < value_dim)[None, :]

    # All that is read is asked for at once.
    of_keys = k + start * k_token + key_head * k_head
    key = tl.load(of_keys + (row * k_token)[:, None] + i[None, :], mask=with_keys, other=0.0)
    raw = tl.load(a + start * a_token + head + row * a_token, mask=live, other=0.0).to(tl.float32)
    beta = tl.load(b + start * b_token + head + row * b_token, mask=live, other=0.0).to(tl.float32)
    bias = tl.load(dt_bias + head).to(tl.float32)
    rate = -tl.exp(tl.load(a_log + head).to(tl.float32))
    of_queries = q + start * q_token + key_head * q_head
    query = tl.load(of_queries + (row * q_token)[:, None] + i[None, :], mask=with_keys, other=0.0)
    of_values = v + start * v_token + head * v_head
    value = tl.load(of_values + (row * v_token)[:, None] + j[None, :], mask=with_values, other=0.0)

    log_decay = tl.where(live, tl.maximum(rate * softplus(raw + bias), SMALLEST_LOG_DECAY) * LOG2_E, 0.0)
    high, low, total_high, total_low = running_log(log_decay)  # to base 2
    beta = sigmoid(beta)
    before = fast_exp2(high + low)
    system = dot(key, tl.trans(key), PRECISION)
    inner = dot(query, tl.trans(key), PRECISION)
    diagonal = row[:, None] == row[None, :]
    of_key = _inverse_lengths(system, diagonal)
    of_query = _inverse_lengths(dot(query, tl.trans(query), PRECISION), diagonal) * query_scale
    own = tl.program_id(0).to(tl.int64) * heads + head
    behind = fast_exp2((total_high - high) + (total_low - low)) * of_key
    tl.store(scales + own * 2 * BLOCK + row * 2, tl.where(live, before * of_query, 0.0))
    tl.store(scales + own * 2 * BLOCK + row * 2 + 1, tl.where(live, behind, 0.0))
    tl.store(wholes + own, fast_exp2(total_high + total_low))

    kind: tl.constexpr = erased.dtype.element_ty
    span = (high[:, None] - high[None, :]) + (low[:, None] - low[None, :])
    decay = fast_exp2(tl.where(row[:, None] >= row[None, :], span, MINUS_INFINITY)) * of_key[None, :]
    square = row[:, None] * BLOCK + row[None, :]
    tl.store(scores + own * BLOCK * BLOCK + square, (inner * decay * of_query[:, None]).to(kind))
    system = tl.where(row[:, None] > row[None, :], system * decay * (beta * of_key)[:, None], 0.0)
    solved = _inverse(system, BLOCK, PRECISION == "tf32", PRECISION)
    w = dot((solved * (beta * before * of_key)[None, :]).to(kind), key, PRECISION)
    tl.store(erased + own * BLOCK * K + row[:, None] * K + i[None, :], w.to(kind))
    u = dot(tl.trans(value), tl.trans((solved * beta[None, :]).to(kind)), PRECISION)
    tl.store(written + own * BLOCK * V + j[:, None] * BLOCK + row[None, :], u.to(kind))


@triton.jit(do_not_specialize_on_alignment=["slots", "emits", "rows", "groups"])
def _gdn_turned_scan(
    q,
    k,
    erased,
    written,
    scores,
    scales,
    wholes,
    view,
    slots,
    emits,
    rows,
    groups,
    out,
    key_dim,
    value_dim,
    per_key,
    q_token,
    q_head,
    k_token,
    k_head,
    view_stride,
    EMITTING: tl.constexpr,
    BLOCK: tl.constexpr,
    K: tl.constexpr,
    ALL_V: tl.constexpr,
    V: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """A program for each sequence, head and V of the values."""
    group = tl.program_id(0)
    head = tl.program_id(1)
    heads = tl.num_programs(1)
    i = tl.arange(0, K)
    j = tl.program_id(2) * V + tl.arange(0, V)
    token = tl.arange(0, BLOCK)
    has_i, has_j = i < key_dim, j < value_dim
    inside = has_j[:, None] & has_i[None, :]
    tile = (head * key_dim + i)[None, :] * value_dim + j[:, None]
    own = view + tl.load(slots + tl.load(groups + group * 3 + 2)).to(tl.int64) * view_stride + tile
    state = tl.load(own, mask=inside, other=0.0).to(tl.float32)
    q += (head // per_key) * q_head
    k += (head // per_key) * k_head
    kind: tl.constexpr = erased.dtype.element_ty
    both = token[:, None] * 2 + tl.arange(0, 2)[None, :]

    for row in range(tl.load(groups + group * 3), tl.load(groups + group * 3 + 1)):
        first = tl.load(rows + row * 5)
        stop = tl.load(rows + row * 5 + 1)
        block = tl.load(rows + row * 5 + 4)
        next_whole = tl.load(wholes + block * heads + head)
        for start in range(first, stop, BLOCK):
            # What changes from block to block is a scalar; within it 32 bits suffice.
            at = (block + (start - first) // BLOCK).to(tl.int64) * heads + head
            whole = next_whole
            next_whole = tl.load(wholes + at + heads, mask=start + BLOCK < stop, other=0.0)
            begin = tl.cast(start, tl.int64)
            live = token < stop - start
            mask = live[:, None] & has_i[None, :]
            w = tl.load(erased + at * BLOCK * K + (token[:, None] * K + i[None, :]))
            u = tl.load(written + at * BLOCK * ALL_V + (j[:, None] * BLOCK + token[None, :]))
            query = tl.load(q + begin * q_token + ((token * q_token)[:, None] + i[None, :]), mask=mask, other=0.0)
            key = tl.load(k + begin * k_token + ((token * k_token)[:, None] + i[None, :]), mask=mask, other=0.0)
            inner = tl.load(scores + at * BLOCK * BLOCK + (token[:, None] * BLOCK + token[None, :]))
            before, behind = tl.split(tl.load(scales + at * 2 * BLOCK + both))

            rounded = state.to(kind)
            fresh = u.to(tl.float32) - dot(rounded, tl.trans(w), PRECISION)
            o = dot(rounded, tl.trans(query), PRECISION) * before[None, :]
            state = onto(state * whole, (fresh * behind[None, :]).to(kind), key, PRECISION)
            o = onto(o, fresh.to(kind), tl.trans(inner), PRECISION)
            place = out + (begin * heads + head) * value_dim + ((token * heads * value_dim)[None, :] + j[:, None])
            tl.store(place, o.to(out.dtype.element_ty), mask=live[None, :] & has_j[:, None])
        if EMITTING:
            chunk = tl.load(rows + row * 5 + 2)
            if chunk >= 0:
                target = tl.load(emits + chunk)
                if target >= 0:
                    place = view + target.to(tl.int64) * view_stride + tile
                    tl.store(place, state.to(view.dtype.element_ty), mask=inside)
    tl.store(own, state.to(view.dtype.element_ty), mask=inside)
