# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
"""How far a token moves a state: softplus of what the model says, within its limits."""

import triton
import triton.language as tl

from plait_kernels.triton_math import softplus


@triton.jit
def step_size_of(dt, bias, low, high):
    return tl.minimum(tl.maximum(softplus(dt + bias), low), high)
