# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
"""``gdn_step`` as one Triton kernel: a program for each sequence and key head, with the value heads that it serves.

The program owns all that it writes: the windows of its queries, keys and values, and the states of its value heads.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from plait_kernels.gated_delta_rule.turned_kernels import UNIT_EPS
from plait_kernels.storage import Slots
from plait_kernels.triton_math import convolved, dense_last, power_of_two, shift_window, sigmoid, silu, softplus
from plait_kernels.tuning import Tunable, bucket

STEP = Tunable(
    "gdn_mixer_step",
    {"num_warps": 8},
    ({"num_warps": 4}, {"num_warps": 8}, {"num_warps": 8, "maxnreg": 128}, {"num_warps": 16}),
)


@triton.jit(do_not_specialize_on_alignment=["slots"])
def _gdn_mixer_step(
    mixed,
    gate,
    a,
    b,
    weight,
    bias,
    a_log,
    dt_bias,
    norm_weight,
    windows,
    states,
    slots,
    scratch,  # [T, channels]
    out,
    query_scale,
    eps,
    mixed_stride,
    gate_stride,
    a_stride,
    b_stride,
    window_stride,
    state_stride,
    BIASED: tl.constexpr,
    WIDTH: tl.constexpr,
    PER_KEY: tl.constexpr,
    key_dim: tl.constexpr,
    value_dim: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    key_head = tl.program_id(1)
    keys = tl.num_programs(1) * key_dim
    value_heads = tl.num_programs(1) * PER_KEY
    slot = tl.load(slots + row).to(tl.int64)
    i = tl.arange(0, K)
    j = tl.arange(0, V)
    has_i, has_j = i < key_dim, j < value_dim
    inside = has_i[:, None] & has_j[None, :]
    dtype: tl.constexpr = out.dtype.element_ty
    x = mixed + row * mixed_stride
    window = windows + slot * window_stride

    # Convolved values go through memory: the compiler would rather compute them anew in each layout that needs them.
    channel = key_head * key_dim + i
    turned = scratch + row * (2 * keys + value_heads * value_dim)
    query = convolved(x, weight, bias, window, channel, has_i, dtype, BIASED, WIDTH)
    key = convolved(x, weight, bias, window, keys + channel, has_i, dtype, BIASED, WIDTH)
    tl.store(turned + channel, query.to(dtype), mask=has_i)
    tl.store(turned + keys + channel, key.to(dtype), mask=has_i)
    shift_window(x, window, channel, has_i, WIDTH)
    shift_window(x, window, keys + channel, has_i, WIDTH)
    for r in range(PER_KEY):
        own = 2 * keys + (key_head * PER_KEY + r) * value_dim + j
        value = convolved(x, weight, bias, window, own, has_j, dtype, BIASED, WIDTH)
        tl.store(turned + own, value.to(dtype), mask=has_j)
        shift_window(x, window, own, has_j, WIDTH)
    tl.debug_barrier()
    query = tl.load(turned + channel, mask=has_i, other=0.0).to(tl.float32)
    key = tl.load(turned + keys + channel, mask=has_i, other=0.0).to(tl.float32)
    query *= tl.math.rsqrt(tl.sum(query * query, axis=0) + UNIT_EPS) * query_scale
    key *= tl.math.rsqrt(tl.sum(key * key, axis=0) + UNIT_EPS)
    factor = tl.load(norm_weight + j, mask=has_j, other=0.0).to(tl.float32)

    for r in range(PER_KEY):  # not unrolled: one state at a time is what the registers hold
        head = key_head * PER_KEY + r
        place = states + slot * state_stride + (head * key_dim + i)[:, None] * value_dim + j[None, :]
        state = tl.load(place, mask=inside, other=0.0).to(tl.float32)
        own = head * value_dim + j
        value = tl.load(turned + 2 * keys + own, mask=has_j, other=0.0).to(tl.float32)
        opening = tl.load(gate + row * gate_stride + own, mask=has_j, other=0.0).to(tl.float32)
        step = softplus(tl.load(a + row * a_stride + head).to(tl.float32) + tl.load(dt_bias + head).to(tl.float32))
        beta = sigmoid(tl.load(b + row * b_stride + head).to(tl.float32))
        state *= tl.exp(-tl.exp(tl.load(a_log + head).to(tl.float32)) * step)
        known = tl.sum(state * key[:, None], axis=0)
        state += key[:, None] * (beta * (value - known))[None, :]
        tl.store(place, state.to(states.dtype.element_ty), mask=inside)
        o = tl.sum(state * query[:, None], axis=0).to(dtype).to(tl.float32)
        unit = o * tl.math.rsqrt(tl.sum(o * o, axis=0) / value_dim + eps)
        tl.store(out + row * (value_heads * value_dim) + own, (unit * factor * silu(opening)).to(dtype), mask=has_j)


def gdn_step(
    mixed: Tensor,
    gate: Tensor,
    a: Tensor,
    b: Tensor,
    conv_weight: Tensor,
    conv_bias: Tensor | None,
    a_log: Tensor,
    dt_bias: Tensor,
    norm_weight: Tensor,
    eps: float,
    conv_view: Tensor,
    delta_view: Tensor,
    slots: Slots,
) -> Tensor:
    mixed, gate, a, b = (dense_last(u) for u in (mixed, gate, a, b))
    rows = len(mixed)
    value_heads, key_dim, value_dim = delta_view.shape[1:]
    key_heads = (mixed.shape[1] - value_heads * value_dim) // (2 * key_dim)
    out = torch.empty(gate.shape, dtype=mixed.dtype, device=mixed.device)
    if not rows:
        return out
    config = STEP.config(mixed.device, bucket(rows), key_heads, value_heads, key_dim, value_dim)
    _gdn_mixer_step[(rows, key_heads)](
        mixed,
        gate,
        a,
        b,
        conv_weight,
        conv_weight if conv_bias is None else conv_bias,
        a_log,
        dt_bias,
        norm_weight,
        conv_view,
        delta_view,
        slots.rows,
        torch.empty(mixed.shape, dtype=mixed.dtype, device=mixed.device),
        out,
        key_dim**-0.5,
        eps,
        mixed.stride(0),
        gate.stride(0),
        a.stride(0),
        b.stride(0),
        conv_view.stride(0),
        delta_view.stride(0),
        BIASED=conv_bias is not None,
        WIDTH=conv_weight.shape[1],
        PER_KEY=value_heads // key_heads,
        key_dim=key_dim,
        value_dim=value_dim,
        K=power_of_two(key_dim),
        V=power_of_two(value_dim),
        **config,
    )
    return out
