# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
"""``gated_activation`` as a Triton kernel."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from plait_kernels.early_start import starts_early, wait_for_others
from plait_kernels.gated_activation import Opening
from plait_kernels.triton_math import gelu_tanh, power_of_two, rows_of, sigmoid, silu

BLOCK = 1024


@triton.jit
def _gated_activation(
    gate, up, out, n, gate_stride, up_stride, KIND: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr
):
    wait_for_others(EARLY)
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live = at < n
    opening = tl.load(gate + row * gate_stride + at, mask=live, other=0.0).to(tl.float32)
    value = tl.load(up + row * up_stride + at, mask=live, other=0.0).to(tl.float32)
    if KIND == "silu":
        opening = silu(opening)
    elif KIND == "gelu_tanh":
        opening = gelu_tanh(opening)
    else:
        opening = sigmoid(opening)
    tl.store(out + row * n + at, (opening * value).to(out.dtype.element_ty), mask=live)


def gated_activation(gate: Tensor, up: Tensor, kind: Opening) -> Tensor:
    shape = gate.shape
    gate, up = rows_of(gate), rows_of(up)
    rows, n = gate.shape
    out = torch.empty(shape, dtype=gate.dtype, device=gate.device)
    if rows and n:
        block = min(BLOCK, power_of_two(n))
        _gated_activation[(rows, triton.cdiv(n, block))](
            gate,
            up,
            out,
            n,
            gate.stride(0),
            up.stride(0),
            KIND=kind,
            BLOCK=block,
            num_warps=4,
            **starts_early(gate.device),
        )
    return out
