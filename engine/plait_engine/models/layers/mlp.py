"""Gated feed-forward blocks (Shazeer 2020)."""

from collections.abc import Mapping

from torch import Tensor, nn

from plait_engine.models.base import Build
from plait_engine.models.layers.linear import Linear, Rows, stacked
from plait_kernels.gated_activation import Kind


class GatedMLP(nn.Module):
    """``down(act(gate(x)) * up(x))``; gate and up are one matrix. ``names``: the checkpoint's for gate, up and down."""

    kind = "dense"

    def __init__(
        self,
        hidden: int,
        inner: int,
        build: Build,
        *,
        activation: Kind = "silu",
        names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
        gate_up: Mapping[str, Rows] | None = None,
    ) -> None:
        """``gate_up``: where the checkpoint stores gate and up as one matrix already."""
        super().__init__()
        gate, up, down = names
        self.activation = activation
        self.kernels = build.kernels
        self.gate_up = Linear(hidden, gate_up or stacked({gate: inner, up: inner}), build)
        self.down = Linear(inner, stacked({down: hidden}), build)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)  # [tokens, inner] each
        out: Tensor = self.down(self.kernels.gated_activation(gate, up, self.activation))
        return out  # [tokens, hidden]
