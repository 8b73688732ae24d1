"""The state-space dual scan of Mamba-2 (Dao and Gu 2024)."""

from typing import Protocol

from torch import Tensor

from plait_kernels.segments import Segments
from plait_kernels.storage import Slots


class Ssd(Protocol):
    """For each head: ``S_t = exp(dt_t * A) * S_{t-1} + dt_t * x_t b_t^T``, ``y_t = S_t c_t + d * x_t``.

    ``x`` ``[T, h, p]``, ``dt`` ``[T, h]`` (raw: ``clamp(softplus(dt + dt_bias), *dt_limit)`` is taken inside),
    ``A = -exp(a_log)``, ``b``, ``c`` ``[T, g, n]`` with h a multiple of g (head i uses group ``i // (h // g)``),
    ``d``, ``a_log``, ``dt_bias`` ``[h]``, ``view`` ``[granules, h, p, n]``. fp32 inside. Returns ``[T, h, p]``.
    """

    def __call__(
        self,
        x: Tensor,
        dt: Tensor,
        a_log: Tensor,
        b: Tensor,
        c: Tensor,
        d: Tensor,
        dt_bias: Tensor,
        view: Tensor,
        slots: Slots,
        segments: Segments,
        *,
        dt_limit: tuple[float, float],
    ) -> Tensor: ...
