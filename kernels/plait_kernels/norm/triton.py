# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
"""The norms as Triton kernels: each row is read once and written once."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from plait_kernels.early_start import starts_early, wait_for_others
from plait_kernels.triton_math import dense_last, power_of_two, rows_of, silu

TILE = 2048
"""Values that a program holds at least: narrow rows are taken several at a time."""


@triton.jit
def _unit(wide, n, eps):
    """Rows of fp32, 0 behind their ``n`` values, to a mean square of 1."""
    return wide * tl.math.rsqrt(tl.sum(wide * wide, axis=1) / n + eps)[:, None]


@triton.jit
def _factor(weight, at, n, offset):
    return tl.load(weight + at, mask=at < n, other=0.0).to(tl.float32) + offset


@triton.jit(do_not_specialize=["rows"])
def _rms_norm(
    x,
    residual,
    first,
    weight,
    normed,
    summed,
    rows,
    inner,  # rows are [rows / inner, inner], each with a stride of its own: heads cut out of a projection
    n,
    x_outer,
    x_inner,
    r_outer,
    scale,
    offset,
    eps,
    ADD: tl.constexpr,
    FIRST: tl.constexpr,  # x is normed before the sum
    WEIGHTED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    wait_for_others(EARLY)
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    at = tl.arange(0, BLOCK)
    live = (row < rows)[:, None] & (at < n)[None, :]
    value = tl.load(
        x + ((row // inner) * x_outer + (row % inner) * x_inner)[:, None] + at[None, :], mask=live, other=0.0
    )
    out = (row * n)[:, None] + at[None, :]
    if FIRST:
        value = _unit(value.to(tl.float32), n, eps) * _factor(first, at, n, offset)[None, :]
        value = value.to(x.dtype.element_ty)
    if ADD:
        before = tl.load(residual + (row * r_outer)[:, None] + at[None, :], mask=live, other=0.0)
        rounded = (before.to(tl.float32) + scale * value.to(tl.float32)).to(summed.dtype.element_ty)
        tl.store(summed + out, rounded, mask=live)
        wide = rounded.to(tl.float32)
    else:
        wide = value.to(tl.float32)
    unit = _unit(wide, n, eps)
    if WEIGHTED:
        unit = unit * _factor(weight, at, n, offset)[None, :]
    tl.store(normed + out, unit.to(normed.dtype.element_ty), mask=live)


@triton.jit(do_not_specialize=["tokens"])
def _gated_rms_norm(
    x,
    gate,
    weight,
    out,
    tokens,
    parts,  # groups of a token
    width,  # channels of a group
    weights,
    x_stride,
    gate_stride,
    eps,
    NORM_FIRST: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    wait_for_others(EARLY)
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    token, channel = row // parts, (row % parts) * width
    at = tl.arange(0, BLOCK)
    live = (token < tokens)[:, None] & (at < width)[None, :]
    inside = channel[:, None] + at[None, :]
    value = tl.load(x + (token * x_stride)[:, None] + inside, mask=live, other=0.0).to(tl.float32)
    opening = silu(tl.load(gate + (token * gate_stride)[:, None] + inside, mask=live, other=0.0).to(tl.float32))
    if not NORM_FIRST:
        value = value * opening
    unit = value * tl.math.rsqrt(tl.sum(value * value, axis=1) / width + eps)[:, None]
    unit = unit * tl.load(weight + inside % weights, mask=live, other=0.0).to(tl.float32)
    if NORM_FIRST:
        unit = unit * opening
    tl.store(out + (token * (parts * width))[:, None] + inside, unit.to(out.dtype.element_ty), mask=live)


def _shape(rows: int, n: int) -> tuple[int, int, int]:
    """Rows of a program, its block, and its warps."""
    block = power_of_two(n)
    together = min(power_of_two(rows), max(1, TILE // block))
    return together, block, min(16, max(1, together * block // 512))


def rms_norm(x: Tensor, weight: Tensor | None, eps: float, *, offset: float = 0.0) -> Tensor:
    if x.dim() > 3 or x.dim() < 2:
        return rms_norm(x.reshape(-1, x.shape[-1]), weight, eps, offset=offset).reshape(x.shape)
    x = dense_last(x)
    outer, inner = x.shape[0], x.shape[1] if x.dim() == 3 else 1
    n, rows = x.shape[-1], outer * inner
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if rows:
        together, block, warps = _shape(rows, n)
        _rms_norm[(triton.cdiv(rows, together),)](
            x,
            x,
            x,
            x if weight is None else weight,
            out,
            out,
            rows,
            inner,
            n,
            x.stride(0),
            x.stride(1) if x.dim() == 3 else 0,
            0,
            1.0,
            offset,
            eps,
            ADD=False,
            FIRST=False,
            WEIGHTED=weight is not None,
            ROWS=together,
            BLOCK=block,
            num_warps=warps,
            **starts_early(x.device),
        )
    return out


def add_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    eps: float,
    *,
    scale: float = 1.0,
    offset: float = 0.0,
    first: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    added, before = rows_of(x), rows_of(residual)
    rows, n = added.shape
    normed = torch.empty(x.shape, dtype=residual.dtype, device=x.device)
    summed = torch.empty(x.shape, dtype=residual.dtype, device=x.device)
    if rows:
        together, block, warps = _shape(rows, n)
        _rms_norm[(triton.cdiv(rows, together),)](
            added,
            before,
            added if first is None else first,
            added if weight is None else weight,
            normed,
            summed,
            rows,
            1,
            n,
            added.stride(0),
            0,
            before.stride(0),
            scale,
            offset,
            eps,
            ADD=True,
            FIRST=first is not None,
            WEIGHTED=weight is not None,
            ROWS=together,
            BLOCK=block,
            num_warps=warps,
            **starts_early(x.device),
        )
    return normed, summed


def gated_rms_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float, *, norm_first: bool, groups: int = 1) -> Tensor:
    x, gate = rows_of(x), rows_of(gate)
    tokens, n = x.shape
    width = weight.shape[0] // groups
    parts = n // width
    out = torch.empty(tokens, n, dtype=x.dtype, device=x.device)
    if tokens:
        together, block, warps = _shape(tokens * parts, width)
        _gated_rms_norm[(triton.cdiv(tokens * parts, together),)](
            x,
            gate,
            weight,
            out,
            tokens,
            parts,
            width,
            weight.shape[0],
            x.stride(0),
            gate.stride(0),
            eps,
            NORM_FIRST=norm_first,
            ROWS=together,
            BLOCK=block,
            num_warps=warps,
            **starts_early(x.device),
        )
    return out
