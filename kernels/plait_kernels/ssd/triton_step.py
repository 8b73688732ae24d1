# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
"""One step of every decode."""

import triton
import triton.language as tl

from plait_kernels.early_start import starts_early, wait_for_others
from plait_kernels.ssd.call import Call
from plait_kernels.ssd.step_size import step_size_of
from plait_kernels.triton_math import WARP, power_of_two
from plait_kernels.tuning import Tunable, bucket

STEP = Tunable(
    "ssd_step",
    {"P": 64, "num_warps": 4},
    tuple({"P": p, "num_warps": w} for p in (16, 32, 64) for w in (1, 2, 4, 8)),
)


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


def run_step(call: Call) -> None:
    head_dim, state_dim, per_group = call.sizes
    heads, n = call.x.shape[1], power_of_two(state_dim)
    config = dict(STEP.config(call.x.device, bucket(call.segments.decodes), heads, head_dim, state_dim))
    config["P"] = min(config["P"], power_of_two(head_dim))
    # No more threads than entries: copies of a thread in another warp could read what is written already.
    config["num_warps"] = min(config["num_warps"], max(1, config["P"] * n // WARP))
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
        # A product may not melt into the sum over lanes: where each lane has one, they would round differently, and
        # which of their results is stored would be chance.
        enable_fp_fusion=False,
        **config,
        **starts_early(call.x.device),
    )
