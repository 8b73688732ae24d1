"""Root mean square norms (Zhang and Sennrich 2019), alone and together with the residual sum before them."""

import torch
from torch import Tensor, nn

from plait_engine.models.base import Build


class RMSNorm(nn.Module):
    """``offset``: 1 where the checkpoint stores weights as their difference from 1 (Gemma, Qwen3-Next), else 0."""

    def __init__(self, size: int, eps: float, build: Build, *, offset: float = 0.0) -> None:
        super().__init__()
        self.eps = eps
        self.offset = offset
        self.kernels = build.kernels
        self.weight = nn.Parameter(torch.empty(size, dtype=build.dtype), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """``[..., size]``, normed over the last dimension."""
        return self.kernels.rms_norm(x, self.weight, self.eps, offset=self.offset)

    def add(
        self, delta: Tensor | None, residual: Tensor, scale: float = 1.0, first: "RMSNorm | None" = None
    ) -> tuple[Tensor, Tensor]:
        """``(norm(sum), sum)`` of ``residual + scale * delta``; the first layer has nothing to add. ``first``, a norm
        like this one, is what delta has to pass before."""
        if delta is None:
            return self.forward(residual), residual
        weight = None if first is None else first.weight
        return self.kernels.add_rms_norm(
            delta, residual, self.weight, self.eps, scale=scale, offset=self.offset, first=weight
        )
