"""Sparse mixture of gated feed-forwards."""

from typing import Protocol

from torch import Tensor

from plait_kernels.gated_activation import Kind


class Moe(Protocol):
    """``sum over the token's k experts of weight * down_e(act(gate_e x) * up_e x)``; routing is the model's business.

    ``x`` ``[T, n]``, ``expert_ids`` int64 ``[T, k]``, ``expert_weights`` fp32 ``[T, k]``, ``gate_up`` ``[e, 2i, n]``
    (gate rows first), ``down`` ``[e, n, i]``. The weighted sum is fp32. Returns ``[T, n]``.
    """

    def __call__(
        self,
        x: Tensor,
        expert_ids: Tensor,
        expert_weights: Tensor,
        gate_up: Tensor,
        down: Tensor,
        *,
        activation: Kind,
    ) -> Tensor: ...
