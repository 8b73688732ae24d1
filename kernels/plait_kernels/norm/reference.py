"""The norms in plain PyTorch, fp32 inside."""

import torch
from torch import Tensor
from torch.nn import functional as F


def _unit_rms(x: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def rms_norm(x: Tensor, weight: Tensor | None, eps: float, *, offset: float = 0.0) -> Tensor:
    normed = _unit_rms(x.float(), eps)
    if weight is not None:
        normed = normed * (weight.float() + offset)
    return normed.to(x.dtype)


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
    if first is not None:
        x = rms_norm(x, first, eps, offset=offset)
    summed = (residual.float() + scale * x.float()).to(residual.dtype)
    return rms_norm(summed, weight, eps, offset=offset), summed


def gated_rms_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float, *, norm_first: bool, groups: int = 1) -> Tensor:
    tokens, n = x.shape
    width = weight.shape[0] // groups
    value, opening = x.float(), F.silu(gate.float())
    if not norm_first:
        value = value * opening
    scaled = _unit_rms(value.reshape(tokens, n // width, width), eps).reshape(tokens, -1, weight.shape[0])
    normed = (scaled * weight.float()).reshape(tokens, n)
    return (normed * opening if norm_first else normed).to(x.dtype)
