"""A whole Mamba-2 mixer step between its two projections: convolution, state-space dual, gated norm."""

from typing import Protocol

from torch import Tensor

from plait_kernels.storage import Slots


class Mamba2Step(Protocol):
    """One token of each sequence: ``causal_conv`` with SiLU, ``ssd``, ``gated_rms_norm`` (gate first).

    ``mixed`` ``[T, h * p + 2 * g * n]``: values, b, c before the convolution; ``gate`` ``[T, h * p]``; ``dt`` ``[T,
    h]``;
    ``conv_weight`` ``[channels, k]``, ``conv_bias`` ``[channels]`` or None; ``a_log``, ``d``, ``dt_bias`` ``[h]``;
    ``norm_weight`` ``[h * p]``, normed in g groups; ``conv_view`` ``[granules, channels, k - 1]``; ``ssm_view``
    ``[granules, h, p, n]``; ``slots.rows`` ``[T]``, no emits: a decode that is worth a checkpoint is copied after it.
    Returns ``[T, h * p]``.
    """

    def __call__(
        self,
        mixed: Tensor,
        gate: Tensor,
        dt: Tensor,
        conv_weight: Tensor,
        conv_bias: Tensor | None,
        a_log: Tensor,
        d: Tensor,
        dt_bias: Tensor,
        norm_weight: Tensor,
        eps: float,
        conv_view: Tensor,
        ssm_view: Tensor,
        slots: Slots,
        *,
        dt_limit: tuple[float, float],
    ) -> Tensor: ...
