"""The gated delta rule (Yang, Kautz and Hatamizadeh 2024)."""

from typing import Protocol

from torch import Tensor

from plait_kernels.segments import Segments
from plait_kernels.storage import Slots


class GatedDeltaRule(Protocol):
    """For each value head: ``S = e^g S; S += k (beta (v - S^T k))^T; o = S^T q``.

    ``q``, ``k`` ``[T, hk, dk]`` raw (taken to unit length inside, q also times ``dk ** -0.5``), ``v`` ``[T, hv, dv]``,
    ``a``, ``b`` ``[T, hv]`` raw: ``g = -exp(a_log) * softplus(a + dt_bias)``, ``beta = sigmoid(b)``; ``a_log``,
    ``dt_bias`` ``[hv]``; ``view`` ``[granules, hv, dk, dv]``. Value head i uses key head ``i // (hv // hk)``.
    fp32 inside. Returns ``[T, hv, dv]``.
    """

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        a: Tensor,
        b: Tensor,
        a_log: Tensor,
        dt_bias: Tensor,
        view: Tensor,
        slots: Slots,
        segments: Segments,
    ) -> Tensor: ...
