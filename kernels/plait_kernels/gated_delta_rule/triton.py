# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
"""``gated_delta_rule`` as Triton kernels: one step of every decode, and the chunked WY form (section 3.3) for longer
pieces.

The chunked form takes two launches. What needs no state (norms, gates, the triangular system of each block) is
computed for all blocks side by side; then one program for each sequence, head and part of the values walks the
blocks with its part of the state in registers: three products with the state and one inside the block.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from plait_kernels.early_start import starts_early, wait_for_others
from plait_kernels.gated_delta_rule import turned
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
    power_of_two,
    running_log,
    sigmoid,
    softplus,
)
from plait_kernels.tuning import Tunable, bucket

STEP = Tunable(
    "gdn_step",
    {"V": 32, "num_warps": 4},
    tuple({"V": v, "num_warps": w} for v in (8, 16, 32, 64, 128) for w in (1, 2, 4, 8)),
)
FORM = Tunable("gdn_form", {"TURNED": 0}, ({"TURNED": 0}, {"TURNED": 1}))
"""Whether longer pieces take the form with a turned state."""
BLOCK = Tunable("gdn_block", {"BLOCK": 32}, ({"BLOCK": 32}, {"BLOCK": 64}))
SOLVE = Tunable(
    "gdn_solve",
    {"num_warps": 8, "num_stages": 1},
    tuple({"num_warps": w, "num_stages": s} for w in (2, 4, 8) for s in (1, 2)),
)
# One stage is no choice for loops around products: with it Triton 3.6 reads beyond its shared memory on an H200.
SCAN = Tunable(
    "gdn_scan",
    {"V": 32, "num_warps": 4, "num_stages": 2},
    tuple({"V": v, "num_warps": w, "num_stages": s} for v in (16, 32, 64, 128) for w in (2, 4, 8) for s in (2, 3)),
)
UNIT_EPS = tl.constexpr(1e-6)
"""Added to the squared length of q and k, as the models were trained."""


@triton.jit(do_not_specialize_on_alignment=["slots"])
def _gdn_step(
    q,
    k,
    v,
    a,
    b,
    a_log,
    dt_bias,
    view,
    slots,
    out,
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
    view_stride,
    K: tl.constexpr,
    V: tl.constexpr,
    EARLY: tl.constexpr,
):
    wait_for_others(EARLY)
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    heads = tl.num_programs(1)
    i = tl.arange(0, K)
    j = tl.program_id(2) * V + tl.arange(0, V)
    has_i, has_j = i < key_dim, j < value_dim
    inside = has_i[:, None] & has_j[None, :]
    place = (
        view + tl.load(slots + row).to(tl.int64) * view_stride + (head * key_dim + i)[:, None] * value_dim + j[None, :]
    )
    state = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    key_head = head // per_key
    key = tl.load(k + row * k_token + key_head * k_head + i, mask=has_i, other=0.0).to(tl.float32)
    query = tl.load(q + row * q_token + key_head * q_head + i, mask=has_i, other=0.0).to(tl.float32)
    value = tl.load(v + row * v_token + head * v_head + j, mask=has_j, other=0.0).to(tl.float32)
    key *= tl.math.rsqrt(tl.sum(key * key, axis=0) + UNIT_EPS)
    query *= tl.math.rsqrt(tl.sum(query * query, axis=0) + UNIT_EPS) * query_scale
    gate = softplus(tl.load(a + row * a_token + head).to(tl.float32) + tl.load(dt_bias + head).to(tl.float32))
    state *= tl.exp(-tl.exp(tl.load(a_log + head).to(tl.float32)) * gate)
    beta = sigmoid(tl.load(b + row * b_token + head).to(tl.float32))
    known = tl.sum(state * key[:, None], axis=0)
    state += key[:, None] * (beta * (value - known))[None, :]
    tl.store(place, state.to(view.dtype.element_ty), mask=inside)
    o = tl.sum(state * query[:, None], axis=0)
    tl.store(out + (row * heads + head) * value_dim + j, o.to(out.dtype.element_ty), mask=has_j)


@triton.jit
def _inverse(system, BLOCK: tl.constexpr, PRECISION: tl.constexpr):
    """``(I + system)^-1`` for a strictly lower triangular system ``[BLOCK, BLOCK]``.

    Inverses of diagonal blocks of 1, 2, 4, ... rows, each from the one before: of [[A, 0], [C, D]] it is
    [[A', 0], [-D' C A', D']]. All blocks of a size at once, picked out by a mask; no power of the system is taken,
    which would overflow where keys are alike.
    """
    i = tl.arange(0, BLOCK)[:, None]
    j = tl.arange(0, BLOCK)[None, :]
    inverse = tl.where(i == j, 1.0, 0.0)
    inverse = tl.where((i // 2 == j // 2) & (i > j), -system, inverse)
    for level in tl.static_range(1, 8):
        if (1 << level) < BLOCK:
            below = (i // (2 << level) == j // (2 << level)) & ((i >> level) > (j >> level))
            inverse -= dot(inverse, dot(tl.where(below, system, 0.0), inverse, PRECISION), PRECISION)
    return inverse


@triton.jit(do_not_specialize_on_alignment=["blocks"])
def _gdn_solve(
    q,
    k,
    v,
    a,
    b,
    a_log,
    dt_bias,
    blocks,
    queries,  # [T, hk, key_dim], unit length and scaled
    keys,  # [T, hk, key_dim], unit length
    erased,  # [T, hv, key_dim]
    written,  # [T, hv, value_dim]
    scores,  # [T, hv, BLOCK]
    from_start,  # fp32 [T, hv]
    to_end,  # fp32 [T, hv]
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
    block = tl.program_id(0)
    head = tl.program_id(1)
    heads = tl.num_programs(1)
    key_head = head // per_key
    t = tl.load(blocks + block * 2) + tl.arange(0, BLOCK)
    live = t < tl.load(blocks + block * 2 + 1)
    t = t.to(tl.int64)
    i = tl.arange(0, K)
    j = tl.arange(0, V)
    with_keys = live[:, None] & (i < key_dim)[None, :]
    with_values = live[:, None] & (j < value_dim)[None, :]

    # Keys, values and queries one after another: together they would not fit in the registers.
    key = tl.load(k + (t * k_token + key_head * k_head)[:, None] + i[None, :], mask=with_keys, other=0.0)
    wide = key.to(tl.float32)
    key = (wide * tl.math.rsqrt(tl.sum(wide * wide, axis=1) + UNIT_EPS)[:, None]).to(key.dtype)
    gate = softplus(
        tl.load(a + t * a_token + head, mask=live, other=0.0).to(tl.float32) + tl.load(dt_bias + head).to(tl.float32)
    )
    log_decay = tl.where(live, -tl.exp(tl.load(a_log + head).to(tl.float32)) * gate, 0.0)
    high, low, total_high, total_low = running_log(tl.maximum(log_decay, SMALLEST_LOG_DECAY))
    beta = sigmoid(tl.load(b + t * b_token + head, mask=live, other=0.0).to(tl.float32))
    decay = decay_between(high, low, BLOCK)
    before = tl.exp(high + low)
    tl.store(from_start + t * heads + head, before, mask=live)
    tl.store(to_end + t * heads + head, tl.exp((total_high - high) + (total_low - low)), mask=live)

    row = tl.arange(0, BLOCK)
    strictly = row[:, None] > row[None, :]
    system = tl.where(strictly, dot(key, tl.trans(key), PRECISION) * beta[:, None] * decay, 0.0)
    solve = _inverse(system, BLOCK, PRECISION).to(key.dtype)
    own = (t * heads + head)[:, None]
    w = dot(solve, (key.to(tl.float32) * (beta * before)[:, None]).to(key.dtype), PRECISION)
    tl.store(erased + own * key_dim + i[None, :], w.to(erased.dtype.element_ty), mask=with_keys)

    value = tl.load(v + (t * v_token + head * v_head)[:, None] + j[None, :], mask=with_values, other=0.0)
    u = dot(solve, (value.to(tl.float32) * beta[:, None]).to(key.dtype), PRECISION)
    tl.store(written + own * value_dim + j[None, :], u.to(written.dtype.element_ty), mask=with_values)

    query = tl.load(q + (t * q_token + key_head * q_head)[:, None] + i[None, :], mask=with_keys, other=0.0)
    wide = query.to(tl.float32)
    length = tl.math.rsqrt(tl.sum(wide * wide, axis=1) + UNIT_EPS) * query_scale
    query = (wide * length[:, None]).to(query.dtype)
    inside = dot(query, tl.trans(key), PRECISION) * decay
    tl.store(scores + own * BLOCK + row[None, :], inside.to(scores.dtype.element_ty), mask=live[:, None])
    if head % per_key == 0:
        shared = (t * (heads // per_key) + key_head)[:, None] * key_dim + i[None, :]
        tl.store(queries + shared, query.to(queries.dtype.element_ty), mask=with_keys)
        tl.store(keys + shared, key.to(keys.dtype.element_ty), mask=with_keys)


@triton.jit(do_not_specialize_on_alignment=["slots", "emits", "rows", "groups"])
def _gdn_scan(
    queries,
    keys,
    erased,
    written,
    scores,
    from_start,
    to_end,
    view,
    slots,
    emits,
    rows,
    groups,
    out,
    key_dim,
    value_dim,
    per_key,
    view_stride,
    EMITTING: tl.constexpr,
    BLOCK: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    PRECISION: tl.constexpr,
):
    group = tl.program_id(0)
    head = tl.program_id(1)
    heads = tl.num_programs(1)
    i = tl.arange(0, K)
    j = tl.program_id(2) * V + tl.arange(0, V)
    has_i, has_j = i < key_dim, j < value_dim
    inside = has_i[:, None] & has_j[None, :]
    tile = (head * key_dim + i)[:, None] * value_dim + j[None, :]
    own = view + tl.load(slots + tl.load(groups + group * 3 + 2)).to(tl.int64) * view_stride + tile
    state = tl.load(own, mask=inside, other=0.0).to(tl.float32)

    for row in range(tl.load(groups + group * 3), tl.load(groups + group * 3 + 1)):
        stop = tl.load(rows + row * 5 + 1)
        for start in range(tl.load(rows + row * 5), stop, BLOCK):
            t = start + tl.arange(0, BLOCK)
            live = t < stop
            t = t.to(tl.int64)
            at = t * heads + head
            with_keys = live[:, None] & has_i[None, :]
            with_values = live[:, None] & has_j[None, :]
            w = tl.load(erased + at[:, None] * key_dim + i[None, :], mask=with_keys, other=0.0)
            u = tl.load(written + at[:, None] * value_dim + j[None, :], mask=with_values, other=0.0)
            shared = (t * (heads // per_key) + head // per_key)[:, None] * key_dim + i[None, :]
            query = tl.load(queries + shared, mask=with_keys, other=0.0)
            key = tl.load(keys + shared, mask=with_keys, other=0.0)
            inner = tl.load(scores + at[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :], mask=live[:, None], other=0.0)
            before = tl.load(from_start + at, mask=live, other=0.0)
            behind = tl.load(to_end + at, mask=live, other=0.0)
            last = tl.minimum(start + BLOCK, stop) - 1
            whole = tl.load(from_start + tl.cast(last, tl.int64) * heads + head)

            rounded = state.to(w.dtype)
            fresh = u.to(tl.float32) - dot(w, rounded, PRECISION)
            o = dot(query, rounded, PRECISION) * before[:, None] + dot(inner, fresh.to(w.dtype), PRECISION)
            place = out + at[:, None] * value_dim + j[None, :]
            tl.store(place, o.to(out.dtype.element_ty), mask=with_values)
            state = state * whole + dot(tl.trans(key), (fresh * behind[:, None]).to(w.dtype), PRECISION)
        if EMITTING:
            chunk = tl.load(rows + row * 5 + 2)
            if chunk >= 0:
                target = tl.load(emits + chunk)
                if target >= 0:
                    place = view + target.to(tl.int64) * view_stride + tile
                    tl.store(place, state.to(view.dtype.element_ty), mask=inside)
    tl.store(own, state.to(view.dtype.element_ty), mask=inside)


def gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    view: Tensor,
    slots: Slots,
    segments: Segments,
) -> Tensor:
    q, k, v, a, b = (dense_last(u) for u in (q, k, v, a, b))
    out = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    if segments.decodes:
        _step(q, k, v, a, b, a_log, dt_bias, view, slots, segments, out)
    if segments.chunks:
        # Tensor cores multiply bf16; everything else is multiplied as fp32, fp16 because a state may be too large
        # for it.
        if v.dtype != torch.bfloat16:
            q, k, v = q.float(), k.float(), v.float()
        scan = turned.run if FORM.config(q.device, *_shape(q, v))["TURNED"] else _scan
        scan(q, k, v, a, b, a_log, dt_bias, view, slots, segments, out)
    return out


def _sizes(q: Tensor, v: Tensor) -> tuple[int, int, int, float]:
    """(key_dim, value_dim, value heads for each key head, the scale of queries)."""
    return q.shape[2], v.shape[2], v.shape[1] // q.shape[1], q.shape[2] ** -0.5


def _shape(q: Tensor, v: Tensor) -> tuple[int, ...]:
    """What configurations of longer pieces are kept by."""
    return (v.shape[1], q.shape[2], v.shape[2], int(v.dtype == torch.float32))


def _strides(q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor) -> tuple[int, ...]:
    return (*q.stride()[:2], *k.stride()[:2], *v.stride()[:2], a.stride(0), b.stride(0))


def _step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    view: Tensor,
    slots: Slots,
    segments: Segments,
    out: Tensor,
) -> None:
    heads, value_dim = v.shape[1:]
    config = dict(STEP.config(q.device, bucket(segments.decodes), heads, q.shape[2], value_dim))
    config["V"] = min(config["V"], power_of_two(value_dim))
    _gdn_step[(segments.decodes, heads, triton.cdiv(value_dim, config["V"]))](
        q,
        k,
        v,
        a,
        b,
        a_log,
        dt_bias,
        view,
        slots.rows,
        out,
        *_sizes(q, v),
        *_strides(q, k, v, a, b),
        view.stride(0),
        K=power_of_two(q.shape[2]),
        **config,
        **starts_early(q.device),
    )


def _scan(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    view: Tensor,
    slots: Slots,
    segments: Segments,
    out: Tensor,
) -> None:
    tokens, heads, value_dim = v.shape
    key_heads, key_dim = q.shape[1:]
    device, key = q.device, _shape(q, v)
    block = BLOCK.config(device, *key)["BLOCK"]
    table = scan_table(segments, block)
    scratch = {"dtype": v.dtype, "device": device}
    queries, keys = (torch.empty(tokens, key_heads, key_dim, **scratch) for _ in range(2))  # type: ignore[call-overload]
    erased = torch.empty(tokens, heads, key_dim, **scratch)  # type: ignore[call-overload]
    written = torch.empty(tokens, heads, value_dim, **scratch)  # type: ignore[call-overload]
    scores = torch.empty(tokens, heads, block, **scratch)  # type: ignore[call-overload]
    from_start, to_end = (torch.empty(tokens, heads, dtype=torch.float32, device=device) for _ in range(2))
    made = (queries, keys, erased, written, scores, from_start, to_end)
    shape: dict[str, Any] = {
        "BLOCK": block,
        "K": power_of_two(key_dim, TENSOR_CORE_ROWS),
        "PRECISION": dot_precision(v.dtype),
    }
    _gdn_solve[(len(table.blocks), heads)](
        q,
        k,
        v,
        a,
        b,
        a_log,
        dt_bias,
        table.blocks,
        *made,
        *_sizes(q, v),
        *_strides(q, k, v, a, b),
        V=power_of_two(value_dim, TENSOR_CORE_ROWS),
        **shape,
        **SOLVE.config(device, *key),
    )
    config = dict(SCAN.config(device, *key))
    config["V"] = max(TENSOR_CORE_ROWS, min(config["V"], power_of_two(value_dim)))
    _gdn_scan[(len(table.groups), heads, triton.cdiv(value_dim, config["V"]))](
        *made,
        view,
        slots.rows,
        slots.rows if slots.emits is None else slots.emits,
        table.rows,
        table.groups,
        out,
        key_dim,
        value_dim,
        v.shape[1] // q.shape[1],
        view.stride(0),
        EMITTING=slots.emits is not None,
        **shape,
        **config,
    )
