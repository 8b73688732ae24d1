"""The Gated DeltaNet mixer (Yang et al. 2024, "Gated Delta Networks"), as Qwen3-Next and Qwen3.5 wire it."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from plait_engine.models.base import Build, LayerState
from plait_engine.models.layers.conv import ConvWeights
from plait_engine.models.layers.linear import Linear, Rows, stacked
from plait_engine.models.layers.norm import RMSNorm
from plait_engine.runner.batch import StepBatch
from plait_engine.state.spec import SlotSpec, TensorSpec


@dataclass(frozen=True)
class DeltaShape:
    """Each key head serves ``value_heads // key_heads`` consecutive value heads."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_width: int
    norm_eps: float

    @property
    def keys(self) -> int:
        return self.key_heads * self.key_dim

    @property
    def values(self) -> int:
        return self.value_heads * self.value_dim

    @property
    def conv_channels(self) -> int:
        return 2 * self.keys + self.values

    @property
    def sizes(self) -> list[int]:
        """Rows of the input projection: queries, keys and values, then the output gate, b, and a."""
        return [self.conv_channels, self.values, self.value_heads, self.value_heads]

    def separate(self) -> dict[str, Rows]:
        """Qwen3.5's four input matrices, one below the other."""
        names = ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a")
        return stacked(dict(zip(names, self.sizes, strict=True)))

    def interleaved(self) -> dict[str, Rows]:
        """Qwen3-Next's two input matrices, which list all that belongs to one key head before the next one."""
        ratio = self.value_heads // self.key_heads
        q, k, v = 0, self.keys, 2 * self.keys
        z, b, a = (
            self.conv_channels,
            self.conv_channels + self.values,
            self.conv_channels + self.values + self.value_heads,
        )

        def of_head(start: int, size: int, head: int) -> range:
            return range(start + head * size, start + (head + 1) * size)

        wide = ((q, self.key_dim), (k, self.key_dim), (v, ratio * self.value_dim), (z, ratio * self.value_dim))
        narrow = ((b, ratio), (a, ratio))
        heads = range(self.key_heads)
        return {
            "in_proj_qkvz": tuple(of_head(start, size, head) for head in heads for start, size in wide),
            "in_proj_ba": tuple(of_head(start, size, head) for head in heads for start, size in narrow),
        }


class GatedDeltaNet(nn.Module):
    """``A_log`` and ``dt_bias`` stay fp32: they set how fast the state decays, over thousands of tokens."""

    state: LayerState

    def __init__(self, hidden: int, shape: DeltaShape, projections: dict[str, Rows], build: Build) -> None:
        super().__init__()
        self.shape, self.kernels = shape, build.kernels
        self.in_proj = Linear(hidden, projections, build)
        self.conv1d = ConvWeights(shape.conv_channels, shape.conv_width, build, bias=False)
        self.A_log, self.dt_bias = (
            nn.Parameter(torch.empty(shape.value_heads, dtype=torch.float32), requires_grad=False) for _ in range(2)
        )
        self.norm = RMSNorm(shape.value_dim, shape.norm_eps, build)
        self.out_proj = Linear(shape.values, stacked({"out_proj": hidden}), build)
        matrix = TensorSpec("delta", (shape.value_heads, shape.key_dim, shape.value_dim), build.state_dtype)
        self.specs = (SlotSpec("gated_delta_net", (self.conv1d.spec, matrix)),)

    def forward(self, x: Tensor, batch: StepBatch) -> Tensor:
        shape, slots, views = self.shape, self.state.slots(batch), self.state.views
        mixed, gate, b, a = torch.split_with_sizes(self.in_proj(x), shape.sizes, dim=-1)
        mixed = self.kernels.causal_conv(
            mixed, self.conv1d.weight, None, views["conv"], slots, batch.segments, activation="silu"
        )
        q, k, v = torch.split_with_sizes(mixed, [shape.keys, shape.keys, shape.values], dim=-1)
        out = self.kernels.gated_delta_rule(
            q.view(-1, shape.key_heads, shape.key_dim),
            k.view(-1, shape.key_heads, shape.key_dim),
            v.view(-1, shape.value_heads, shape.value_dim),
            a,  # [tokens, value_heads], like b
            b,
            self.A_log,
            self.dt_bias,
            views["delta"],
            slots,
            batch.segments,
        )  # [tokens, value_heads, value_dim]
        normed = self.kernels.gated_rms_norm(out.flatten(1), gate, self.norm.weight, shape.norm_eps, norm_first=True)
        y: Tensor = self.out_proj(normed)
        return y  # [tokens, hidden]
