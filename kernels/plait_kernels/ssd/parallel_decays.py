# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,no-any-return"
"""Decays of all blocks side by side."""

import triton
import triton.language as tl

from plait_kernels.early_start import wait_for_others
from plait_kernels.ssd.step_size import step_size_of
from plait_kernels.triton_math import LOG2_E, SMALLEST_LOG_DECAY, fast_exp2


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
    behind = fast_exp2((total[None, :] - reading).to(tl.float32)) * size

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
    tl.store(wholes + at, fast_exp2(total.to(tl.float32)), mask=head < heads)


@triton.jit
def _lost(exact):
    """What fp32 loses of an fp64 number."""
    return (exact - exact.to(tl.float32).to(tl.float64)).to(tl.float32)
