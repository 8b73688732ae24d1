# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
"""A block of tokens as the kernels of longer pieces read it, and what it adds to the state."""

import triton
import triton.language as tl

from plait_kernels.triton_math import SMALLEST_LOG_DECAY, dot, running_log, softplus


@triton.jit
def step_size_of(dt, bias, low, high):
    return tl.minimum(tl.maximum(softplus(dt + bias), low), high)


@triton.jit
def read_block(
    x,
    dt,
    b,
    start,
    stop,
    p,
    n,
    has_p,
    has_n,
    rate,
    bias,
    x_token,
    dt_token,
    b_token,
    dt_low,
    dt_high,
    BLOCK: tl.constexpr,
):
    """A block's inputs: x ``[BLOCK, P]``, b ``[BLOCK, N]``, step sizes, and running log decays. Dead tokens are zeros:
    no input and no decay, so the state behind the block is that of its last live token."""
    t = start + tl.arange(0, BLOCK)
    live = t < stop
    t = t.to(tl.int64)
    value = tl.load(x + (t * x_token)[:, None] + p[None, :], mask=live[:, None] & has_p[None, :], other=0.0)
    write = tl.load(b + (t * b_token)[:, None] + n[None, :], mask=live[:, None] & has_n[None, :], other=0.0)
    raw = tl.load(dt + t * dt_token, mask=live, other=0.0).to(tl.float32)
    size = tl.where(live, step_size_of(raw, bias, dt_low, dt_high), 0.0)
    high, low, total_high, total_low = running_log(tl.maximum(rate * size, SMALLEST_LOG_DECAY))
    return value, write, size, high, low, total_high, total_low


@triton.jit
def added_by(value, write, size, high, low, total_high, total_low, PRECISION: tl.constexpr):
    """What a block adds to the state ``[P, N]``."""
    to_end = tl.exp((total_high - high) + (total_low - low))
    scaled = value.to(tl.float32) * (size * to_end)[:, None]
    return dot(tl.trans(scaled).to(value.dtype), write, PRECISION)
