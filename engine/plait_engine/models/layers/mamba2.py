"""The Mamba-2 mixer (Dao and Gu 2024, "Transformers are SSMs"), as Granite 4 hybrid and Bamba wire it."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from plait_engine.models.base import Build, LayerState
from plait_engine.models.layers.conv import ConvWeights
from plait_engine.models.layers.linear import Linear, stacked
from plait_engine.models.layers.norm import RMSNorm
from plait_engine.runner.batch import StepBatch
from plait_engine.state.spec import SlotSpec, TensorSpec


@dataclass(frozen=True)
class Mamba2Shape:
    heads: int
    head_dim: int
    groups: int
    state_size: int
    conv_width: int
    conv_bias: bool
    proj_bias: bool
    dt_limit: tuple[float, float]
    norm_eps: float

    @property
    def inner(self) -> int:
        return self.heads * self.head_dim

    @property
    def conv_channels(self) -> int:
        return self.inner + 2 * self.groups * self.state_size


class Mamba2(nn.Module):
    """``A_log``, ``D`` and ``dt_bias`` stay fp32: they set how fast the state decays, over thousands of tokens."""

    state: LayerState

    def __init__(self, hidden: int, shape: Mamba2Shape, build: Build) -> None:
        super().__init__()
        self.shape, self.kernels = shape, build.kernels
        self.in_proj = Linear(
            hidden, stacked({"in_proj": shape.inner + shape.conv_channels + shape.heads}), build, bias=shape.proj_bias
        )
        self.conv1d = ConvWeights(shape.conv_channels, shape.conv_width, build, bias=shape.conv_bias)
        self.A_log, self.D, self.dt_bias = (
            nn.Parameter(torch.empty(shape.heads, dtype=torch.float32), requires_grad=False) for _ in range(3)
        )
        self.norm = RMSNorm(shape.inner, shape.norm_eps, build)
        self.out_proj = Linear(shape.inner, stacked({"out_proj": hidden}), build, bias=shape.proj_bias)
        matrix = TensorSpec("ssm", (shape.heads, shape.head_dim, shape.state_size), build.state_dtype)
        self.specs = (SlotSpec("mamba2", (self.conv1d.spec, matrix)),)

    def forward(self, x: Tensor, batch: StepBatch) -> Tensor:
        shape, slots, views = self.shape, self.state.slots(batch), self.state.views
        bc = shape.groups * shape.state_size
        gate, mixed, dt = torch.split_with_sizes(
            self.in_proj(x), [shape.inner, shape.conv_channels, shape.heads], dim=-1
        )
        mixed = self.kernels.causal_conv(
            mixed, self.conv1d.weight, self.conv1d.bias, views["conv"], slots, batch.segments, activation="silu"
        )
        values, b, c = torch.split_with_sizes(mixed, [shape.inner, bc, bc], dim=-1)
        y = self.kernels.ssd(
            values.view(-1, shape.heads, shape.head_dim),
            dt,  # [tokens, heads]
            self.A_log,
            b.view(-1, shape.groups, shape.state_size),
            c.view(-1, shape.groups, shape.state_size),
            self.D,
            self.dt_bias,
            views["ssm"],
            slots,
            batch.segments,
            dt_limit=shape.dt_limit,
        )  # [tokens, heads, head_dim]
        y = self.kernels.gated_rms_norm(
            y.flatten(1), gate, self.norm.weight, shape.norm_eps, norm_first=False, groups=shape.groups
        )
        out: Tensor = self.out_proj(y)
        return out  # [tokens, hidden]
