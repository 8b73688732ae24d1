# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
"""Logits and probabilities as whole numbers: sums of them are exact, in whatever order they are taken."""

import triton
import triton.language as tl

from plait_kernels.sampling import GREEDY_BELOW

UNIT = tl.constexpr(float(1 << 40))
"""Of the best token's probability there are so many."""
COLDEST = tl.constexpr(GREEDY_BELOW)


@triton.jit
def sort_key(x):
    """fp32 to int64, in the same order; equal numbers have equal keys, 0 and -0 too."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64)


@triton.jit
def weight(score):
    """Probability relative to the best token's, whose score is 0, in units."""
    return (tl.exp(score) * UNIT).to(tl.int64)


@triton.jit
def warm(temperature):
    """Greedy rows are computed like the others, at 1, and their draw is thrown away."""
    return tl.where(temperature < COLDEST, 1.0, temperature)


@triton.jit
def share_of(total, p):
    """The least whole mass that is not below ``p * total``."""
    return tl.ceil(total.to(tl.float64) * p.to(tl.float64)).to(tl.int64)
