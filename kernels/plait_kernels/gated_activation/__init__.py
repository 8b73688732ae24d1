"""Gates: of a gated feed-forward (Shazeer 2020), and of attention's output (Qiu et al. 2025)."""

from typing import Literal, Protocol

from torch import Tensor

Kind = Literal["silu", "gelu_tanh"]
"""Of a feed-forward."""
Opening = Literal["silu", "gelu_tanh", "sigmoid"]


class GatedActivation(Protocol):
    """``kind(gate) * up`` for ``gate``, ``up`` ``[T, n]``, which may be two halves of one tensor; fp32 inside."""

    def __call__(self, gate: Tensor, up: Tensor, kind: Opening) -> Tensor: ...
