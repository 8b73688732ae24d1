# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
"""``gated_delta_rule`` as Triton kernels: one step of every decode, and ``turned`` for longer pieces."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from plait_kernels.early_start import starts_early, wait_for_others
from plait_kernels.gated_delta_rule import turned
from plait_kernels.gated_delta_rule.turned_kernels import UNIT_EPS
from plait_kernels.segments import Segments
from plait_kernels.storage import Slots
from plait_kernels.triton_math import WARP, dense_last, power_of_two, sigmoid, softplus
from plait_kernels.tuning import Tunable, bucket

STEP = Tunable(
    "gdn_step",
    {"V": 32, "num_warps": 4},
    tuple({"V": v, "num_warps": w} for v in (8, 16, 32, 64, 128) for w in (1, 2, 4, 8)),
)
"""Programs that go from state to state and ask for the next ones ahead were slower on an H200: 43 us against 42 for 32
sequences, 365 against 284 for 256."""


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
        turned.run(q, k, v, a, b, a_log, dt_bias, view, slots, segments, out)
    return out


def _sizes(q: Tensor, v: Tensor) -> tuple[int, int, int, float]:
    """(key_dim, value_dim, value heads for each key head, the scale of queries)."""
    return q.shape[2], v.shape[2], v.shape[1] // q.shape[1], q.shape[2] ** -0.5


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
    # No more threads than entries: copies of a thread in another warp could read what is written already.
    config["num_warps"] = min(config["num_warps"], max(1, power_of_two(q.shape[2]) * config["V"] // WARP))
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
