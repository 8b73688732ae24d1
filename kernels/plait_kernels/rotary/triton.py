# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
"""``rotary`` as a Triton kernel."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from plait_kernels.triton_math import dense_last, power_of_two

TILE = 2048
"""Values that a program holds: as many heads of a token as fit."""


@triton.jit
def turn_heads(
    x,  # at the token
    weight,
    out,
    token,
    position,
    cos_sin,
    first,
    heads,
    dim,
    half,  # of the channels that turn
    head_stride,
    table_stride,
    eps,
    offset,
    NORMED: tl.constexpr,
    ROTARY: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Norm, then rotate, heads ``[first, first + HEADS)`` of a token."""
    head = first + tl.arange(0, HEADS)
    at = tl.arange(0, BLOCK)
    live = (head < heads)[:, None] & (at < dim)[None, :]
    line = x + (head * head_stride)[:, None]
    value = tl.load(line + at[None, :], mask=live, other=0.0).to(tl.float32)
    scale = tl.full((HEADS, 1), 1.0, tl.float32)
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
        row = cos_sin + position * table_stride
        angle = tl.where(at < half, at, at - half)
        cos = tl.load(row + angle, mask=turns, other=1.0)
        sin = tl.load(row + half + angle, mask=turns, other=0.0)
        sign = tl.where(at < half, -1.0, 1.0)
        value = tl.where(turns[None, :], value * cos[None, :] + partner * (sin * sign)[None, :], value)
    place = out + (token * heads + head)[:, None] * dim + at[None, :]
    tl.store(place, value.to(out.dtype.element_ty), mask=live)


@triton.jit(do_not_specialize_on_alignment=["positions"])
def _rotary(
    x,
    positions,
    cos_sin,
    out,
    heads,
    dim,
    half,
    token_stride,
    head_stride,
    table_stride,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    position = tl.load(positions + token).to(tl.int64)
    turn_heads(
        x + token * token_stride, x, out, token, position, cos_sin, tl.program_id(1) * HEADS, heads, dim, half,
        head_stride, table_stride, 0.0, 0.0, False, True, HEADS, BLOCK,
    )  # fmt: skip


def heads_together(heads: int, dim: int) -> tuple[int, int, int]:
    """(heads of a program, block of channels, warps)."""
    block = power_of_two(dim)
    together = min(power_of_two(heads), max(1, TILE // block))
    return together, block, max(1, together * block // 512)


def rotary(x: Tensor, positions: Tensor, cos_sin: Tensor) -> Tensor:
    x = dense_last(x)
    tokens, heads, dim = x.shape
    out = torch.empty(tokens, heads, dim, dtype=x.dtype, device=x.device)
    if tokens:
        together, block, warps = heads_together(heads, dim)
        _rotary[(tokens, triton.cdiv(heads, together))](
            x,
            positions,
            cos_sin,
            out,
            heads,
            dim,
            cos_sin.shape[-1] // 2,
            x.stride(0),
            x.stride(1),
            cos_sin.stride(0),
            HEADS=together,
            BLOCK=block,
            num_warps=warps,
        )
    return out
