# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
"""``mamba2_step`` as one Triton kernel: a program for each sequence and head.

All heads of a group read the group's b and c and their convolution windows, and share one norm. The last program of a
group to finish moves those windows on and norms what all of them left; every other window and state has one owner.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from plait_kernels.ssd.step_size import step_size_of
from plait_kernels.storage import Slots
from plait_kernels.triton_math import (
    COUNTERS,
    arrive,
    convolved,
    counters,
    dense_last,
    power_of_two,
    shift_window,
    silu,
)
from plait_kernels.tuning import Tunable, bucket

STEP = Tunable("mamba2_mixer_step", {"num_warps": 4}, tuple({"num_warps": w} for w in (2, 4, 8)))


@triton.jit(do_not_specialize_on_alignment=["slots", "groups"])
def _mamba2_mixer_step(
    mixed,
    gate,
    dt,
    weight,
    bias,
    a_log,
    d,
    dt_bias,
    norm_weight,
    windows,
    states,
    slots,
    scratch,
    out,
    done,
    head_dim,
    state_dim,
    groups,
    eps,
    mixed_stride,
    gate_stride,
    dt_stride,
    window_stride,
    state_stride,
    dt_low,
    dt_high,
    BIASED: tl.constexpr,
    WIDTH: tl.constexpr,
    P: tl.constexpr,
    N: tl.constexpr,
    SHARED: tl.constexpr,  # channels that are normed together, up to a power of two
):
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    heads = tl.num_programs(1)
    per_group = heads // groups
    group = head // per_group
    inner = heads * head_dim
    slot = tl.load(slots + row).to(tl.int64)
    p = tl.arange(0, P)
    n = tl.arange(0, N)
    has_p, has_n = p < head_dim, n < state_dim
    inside = has_p[:, None] & has_n[None, :]
    dtype: tl.constexpr = out.dtype.element_ty
    x = mixed + row * mixed_stride
    window = windows + slot * window_stride

    place = states + slot * state_stride + (head * head_dim + p)[:, None] * state_dim + n[None, :]
    state = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    own = head * head_dim + p
    b_channel = inner + group * state_dim + n
    c_channel = b_channel + groups * state_dim
    value = convolved(x, weight, bias, window, own, has_p, dtype, BIASED, WIDTH)
    write = convolved(x, weight, bias, window, b_channel, has_n, dtype, BIASED, WIDTH)
    read = convolved(x, weight, bias, window, c_channel, has_n, dtype, BIASED, WIDTH)
    shift_window(x, window, own, has_p, WIDTH)
    # Through memory: the compiler would rather compute it anew in the layout of the state's rows.
    tl.store(scratch + row * inner + own, value.to(dtype), mask=has_p)
    tl.debug_barrier()
    value = tl.load(scratch + row * inner + own, mask=has_p, other=0.0).to(tl.float32)
    raw = tl.load(dt + row * dt_stride + head).to(tl.float32)
    size = step_size_of(raw, tl.load(dt_bias + head).to(tl.float32), dt_low, dt_high)
    state *= tl.exp(-tl.exp(tl.load(a_log + head).to(tl.float32)) * size)
    state += (value * size)[:, None] * write[None, :]
    tl.store(place, state.to(states.dtype.element_ty), mask=inside)
    y = tl.sum(state * read[None, :], axis=1) + tl.load(d + head).to(tl.float32) * value
    tl.store(scratch + row * inner + own, y.to(dtype), mask=has_p)

    if arrive(done + row * groups + group, per_group):
        shift_window(x, window, b_channel, has_n, WIDTH)
        shift_window(x, window, c_channel, has_n, WIDTH)
        width = per_group * head_dim
        at = tl.arange(0, SHARED)
        live = at < width
        channel = group * width + at
        whole = tl.load(scratch + row * inner + channel, mask=live, other=0.0, cache_modifier=".cg").to(tl.float32)
        whole *= silu(tl.load(gate + row * gate_stride + channel, mask=live, other=0.0).to(tl.float32))
        whole *= tl.math.rsqrt(tl.sum(whole * whole, axis=0) / width + eps)
        whole *= tl.load(norm_weight + channel, mask=live, other=0.0).to(tl.float32)
        tl.store(out + row * inner + channel, whole.to(dtype), mask=live)


def mamba2_step(
    mixed: Tensor,
    gate: Tensor,
    dt: Tensor,
    conv_weight: Tensor,
    conv_bias: Tensor | None,
    a_log: Tensor,
    d: Tensor,
    dt_bias: Tensor,
    norm_weight: Tensor,
    eps: float,
    conv_view: Tensor,
    ssm_view: Tensor,
    slots: Slots,
    *,
    dt_limit: tuple[float, float],
) -> Tensor:
    mixed, gate, dt = dense_last(mixed), dense_last(gate), dense_last(dt)
    rows = len(mixed)
    heads, head_dim, state_dim = ssm_view.shape[1:]
    groups = (mixed.shape[1] - heads * head_dim) // (2 * state_dim)
    out = torch.empty(gate.shape, dtype=mixed.dtype, device=mixed.device)
    if not rows:
        return out
    if rows * groups > COUNTERS:
        raise ValueError(f"mamba2_step takes at most {COUNTERS // groups} sequences of {groups} groups, not {rows}")
    config = STEP.config(mixed.device, bucket(rows), heads, head_dim, state_dim)
    _mamba2_mixer_step[(rows, heads)](
        mixed,
        gate,
        dt,
        conv_weight,
        conv_weight if conv_bias is None else conv_bias,
        a_log,
        d,
        dt_bias,
        norm_weight,
        conv_view,
        ssm_view,
        slots.rows,
        torch.empty_like(out),
        out,
        counters(mixed.device),
        head_dim,
        state_dim,
        groups,
        eps,
        mixed.stride(0),
        gate.stride(0),
        dt.stride(0),
        conv_view.stride(0),
        ssm_view.stride(0),
        *dt_limit,
        BIASED=conv_bias is not None,
        WIDTH=conv_weight.shape[1],
        P=power_of_two(head_dim),
        N=power_of_two(state_dim),
        SHARED=power_of_two(heads // groups * head_dim),
        **config,
    )
    return out
