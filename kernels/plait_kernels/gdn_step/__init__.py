"""A whole Gated DeltaNet mixer step between its two projections: convolution, gated delta rule, gated norm."""

from typing import Protocol

from torch import Tensor

from plait_kernels.storage import Slots


class GdnStep(Protocol):
    """One token of each sequence: ``causal_conv`` with SiLU, ``gated_delta_rule``, ``gated_rms_norm`` (norm first).

    ``mixed`` ``[T, 2 * hk * dk + hv * dv]``: queries, keys, values before the convolution; ``gate`` ``[T, hv * dv]``;
    ``a``, ``b`` ``[T, hv]``; ``conv_weight`` ``[channels, k]``, ``conv_bias`` ``[channels]`` or None; ``a_log``,
    ``dt_bias`` ``[hv]``; ``norm_weight`` ``[dv]``; ``conv_view`` ``[granules, channels, k - 1]``; ``delta_view``
    ``[granules, hv, dk, dv]``; ``slots.rows`` ``[T]``, no emits: a decode that is worth a checkpoint is copied after
    it. Returns ``[T, hv * dv]``.
    """

    def __call__(
        self,
        mixed: Tensor,
        gate: Tensor,
        a: Tensor,
        b: Tensor,
        conv_weight: Tensor,
        conv_bias: Tensor | None,
        a_log: Tensor,
        dt_bias: Tensor,
        norm_weight: Tensor,
        eps: float,
        conv_view: Tensor,
        delta_view: Tensor,
        slots: Slots,
    ) -> Tensor: ...
