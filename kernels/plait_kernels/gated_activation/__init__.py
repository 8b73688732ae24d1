"""The gate of a gated feed-forward (Shazeer 2020)."""

from typing import Literal, Protocol

from torch import Tensor

Kind = Literal["silu", "gelu_tanh"]


class GatedActivation(Protocol):
    """``kind(gate) * up`` for ``gate``, ``up`` ``[T, n]``, which may be two halves of one tensor; fp32 inside."""

    def __call__(self, gate: Tensor, up: Tensor, kind: Kind) -> Tensor: ...
