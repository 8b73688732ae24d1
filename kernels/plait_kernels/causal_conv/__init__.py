"""Depthwise causal convolution over time, with the last inputs kept in a slot."""

from typing import Literal, Protocol

from torch import Tensor

from plait_kernels.segments import Segments
from plait_kernels.storage import Slots

Activation = Literal["silu"] | None


class CausalConv(Protocol):
    """``y_t = act(bias + sum_j weight[:, j] * x_{t-k+1+j})`` for each channel.

    ``x`` ``[T, c]``, ``weight`` ``[c, k]``, ``bias`` ``[c]`` or None, ``view`` ``[granules, c, k - 1]``: the last k - 1
    inputs, oldest first. Sums are fp32. Returns ``[T, c]``.
    """

    def __call__(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        view: Tensor,
        slots: Slots,
        segments: Segments,
        *,
        activation: Activation,
    ) -> Tensor: ...
