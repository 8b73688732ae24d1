"""Root-mean-square norms (Zhang and Sennrich 2019), alone, with the residual sum before, or with a gate."""

from typing import Protocol

from torch import Tensor


class RmsNorm(Protocol):
    """``x / sqrt(mean(x^2) + eps) * (offset + weight)`` over the last dimension.

    ``x`` ``[..., n]``, ``weight`` ``[n]`` or None (then plain scaling to unit mean square). fp32 inside, including the
    weight; one rounding, to x's dtype. ``offset`` is 1 for models that store ``weight - 1``.
    """

    def __call__(self, x: Tensor, weight: Tensor | None, eps: float, *, offset: float = 0.0) -> Tensor: ...


class AddRmsNorm(Protocol):
    """``summed = residual + scale * x``, and ``rms_norm(summed)``: returns ``(normed, summed)``.

    ``x``, ``residual`` ``[..., n]``. ``summed`` has the residual's dtype and is what the norm sees, rounded, so that
    the pair equals the two separate ops. ``first`` ``[n]``, where given, is the weight of a norm of x before the sum,
    with the same eps and offset, which equals that op too.
    """

    def __call__(
        self,
        x: Tensor,
        residual: Tensor,
        weight: Tensor | None,
        eps: float,
        *,
        scale: float = 1.0,
        offset: float = 0.0,
        first: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]: ...


class GatedRmsNorm(Protocol):
    """RMS norm with a SiLU gate, in groups.

    ``x``, ``gate`` ``[T, n]``, ``weight`` ``[w]`` with n a multiple of w, repeated over the n channels. Mean squares
    are taken over groups of ``w / groups`` channels: a weight of one head's width normalises each head by itself (Gated
    DeltaNet), a full-width weight the whole row, or ``groups`` parts of it (Mamba-2). ``norm_first``:
    ``norm(x) * silu(gate)`` (Gated DeltaNet), else ``norm(x * silu(gate))`` (Mamba-2).
    """

    def __call__(
        self, x: Tensor, gate: Tensor, weight: Tensor, eps: float, *, norm_first: bool, groups: int = 1
    ) -> Tensor: ...
