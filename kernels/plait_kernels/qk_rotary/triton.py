# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
"""``qk_rotary`` as one Triton kernel: the first programs of a token take queries, the others keys."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from plait_kernels.early_start import starts_early, wait_for_others
from plait_kernels.rotary.triton import heads_together, turn_heads
from plait_kernels.triton_math import dense_last


@triton.jit(do_not_specialize_on_alignment=["positions"])
def _qk_rotary(
    q,
    k,
    q_weight,
    k_weight,
    positions,
    cos_sin,
    q_out,
    k_out,
    q_heads,
    k_heads,
    dim,
    half,
    q_token,
    q_head,
    k_token,
    k_head,
    table_stride,
    eps,
    offset,
    NORMED: tl.constexpr,
    ROTARY: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    wait_for_others(EARLY)
    token = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    q_parts = tl.cdiv(q_heads, HEADS)
    position = tl.load(positions + token).to(tl.int64)
    if part < q_parts:
        turn_heads(
            q + token * q_token, q_weight, q_out, token, position, cos_sin, part * HEADS, q_heads, dim, half,
            q_head, table_stride, eps, offset, NORMED, ROTARY, HEADS, BLOCK,
        )  # fmt: skip
    else:
        turn_heads(
            k + token * k_token, k_weight, k_out, token, position, cos_sin, (part - q_parts) * HEADS, k_heads, dim,
            half, k_head, table_stride, eps, offset, NORMED, ROTARY, HEADS, BLOCK,
        )  # fmt: skip


def qk_rotary(
    q: Tensor,
    k: Tensor,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    eps: float,
    positions: Tensor,
    cos_sin: Tensor | None,
    *,
    offset: float = 0.0,
) -> tuple[Tensor, Tensor]:
    if (q_weight is None) != (k_weight is None):
        raise ValueError("queries and keys are both normed, or neither is")
    q, k = dense_last(q), dense_last(k)
    tokens, q_heads, dim = q.shape
    k_heads = k.shape[1]
    q_out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    k_out = torch.empty(k.shape, dtype=k.dtype, device=k.device)
    if tokens:
        together, block, warps = heads_together(min(q_heads, k_heads), dim)
        _qk_rotary[(tokens, triton.cdiv(q_heads, together) + triton.cdiv(k_heads, together))](
            q,
            k,
            q if q_weight is None else q_weight,
            k if k_weight is None else k_weight,
            positions,
            q if cos_sin is None else cos_sin,
            q_out,
            k_out,
            q_heads,
            k_heads,
            dim,
            0 if cos_sin is None else cos_sin.shape[-1] // 2,
            *q.stride()[:2],
            *k.stride()[:2],
            0 if cos_sin is None else cos_sin.stride(0),
            eps,
            offset,
            NORMED=q_weight is not None,
            ROTARY=cos_sin is not None,
            HEADS=together,
            BLOCK=block,
            num_warps=warps,
            **starts_early(q.device),
        )
    return q_out, k_out
