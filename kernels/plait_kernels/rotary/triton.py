# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
"""``rotary`` as a Triton kernel, alone and with the norm over each head before it."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from plait_kernels.triton_math import dense_last, power_of_two

TILE = 2048
"""Values that a program holds: as many heads of a token as fit."""


@triton.jit
def _norm_rotary(
    x,
    weight,
    positions,
    cos_sin,
    out,
    heads,
    dim,
    half,  # of the channels that turn
    x_token,
    x_head,
    table_stride,
    eps,
    offset,
    NORMED: tl.constexpr,
    ROTARY: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    at = tl.arange(0, BLOCK)
    live = (head < heads)[:, None] & (at < dim)[None, :]
    line = x + token * x_token + (head * x_head)[:, None]
    value = tl.load(line + at[None, :], mask=live, other=0.0).to(tl.float32)
    if NORMED:
        factor = tl.load(weight + at, mask=at < dim, other=0.0).to(tl.float32) + offset
        scale = tl.math.rsqrt(tl.sum(value * value, axis=1) / dim + eps)[:, None]
        # Rounded as the separate op rounds, so that fused and separate agree.
        value = (value * scale * factor[None, :]).to(out.dtype.element_ty).to(tl.float32)
    if ROTARY:
        # Each channel's partner lies half a turn away; reading it again costs a cache hit and saves a shuffle.
        turns = at < 2 * half
        other = tl.where(at < half, at + half, at - half)
        partner = tl.load(line + other[None, :], mask=live & turns[None, :], other=0.0).to(tl.float32)
        if NORMED:
            pair = tl.load(weight + other, mask=turns, other=0.0).to(tl.float32) + offset
            partner = (partner * scale * pair[None, :]).to(out.dtype.element_ty).to(tl.float32)
        row = cos_sin + tl.load(positions + token).to(tl.int64) * table_stride
        angle = tl.where(at < half, at, at - half)
        cos = tl.load(row + angle, mask=turns, other=1.0)
        sin = tl.load(row + half + angle, mask=turns, other=0.0)
        sign = tl.where(at < half, -1.0, 1.0)
        value = tl.where(turns[None, :], value * cos[None, :] + partner * (sin * sign)[None, :], value)
    place = out + (token * heads + head)[:, None] * dim + at[None, :]
    tl.store(place, value.to(out.dtype.element_ty), mask=live)


def _launch(x: Tensor, weight: Tensor | None, eps: float, offset: float, positions: Tensor, table: Tensor) -> Tensor:
    x = dense_last(x)
    tokens, heads, dim = x.shape
    out = torch.empty(tokens, heads, dim, dtype=x.dtype, device=x.device)
    if tokens:
        block = power_of_two(dim)
        together = min(power_of_two(heads), max(1, TILE // block))
        _norm_rotary[(tokens, triton.cdiv(heads, together))](
            x,
            x if weight is None else weight,
            positions,
            table,
            out,
            heads,
            dim,
            table.shape[-1] // 2,
            x.stride(0),
            x.stride(1),
            table.stride(0),
            eps,
            offset,
            NORMED=weight is not None,
            ROTARY=table.shape[-1] > 0,
            HEADS=together,
            BLOCK=block,
            num_warps=max(1, together * block // 512),
        )
    return out


def rotary(x: Tensor, positions: Tensor, cos_sin: Tensor) -> Tensor:
    return _launch(x, None, 0.0, 0.0, positions, cos_sin)


def norm_rotary(
    x: Tensor, weight: Tensor, eps: float, positions: Tensor, cos_sin: Tensor, *, offset: float = 0.0
) -> Tensor:
    """``rotary(rms_norm(x, weight, eps, offset=offset), positions, cos_sin)`` in one launch."""
    return _launch(x, weight, eps, offset, positions, cos_sin)
