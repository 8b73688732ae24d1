"""Depthwise causal convolution: each channel sees its last few values."""

from collections.abc import Container, Iterator

import torch
from torch import nn

from plait_engine.models.base import Build
from plait_engine.models.targets import Packed, Target
from plait_engine.state.spec import TensorSpec


class ConvWeights(Packed):
    """``weight [channels, width]``; the checkpoint stores it as ``[channels, 1, width]`` under ``name``."""

    def __init__(self, channels: int, width: int, build: Build, *, bias: bool, name: str = "conv1d") -> None:
        super().__init__()
        self.name = name
        self.spec = TensorSpec("conv", (channels, width - 1), build.dtype)
        self.weight = nn.Parameter(torch.empty(channels, width, dtype=build.dtype), requires_grad=False)
        self.bias: nn.Parameter | None = None
        if bias:
            self.bias = nn.Parameter(torch.empty(channels, dtype=build.dtype), requires_grad=False)

    def targets(self, parent: str, _present: Container[str]) -> Iterator[Target]:
        channels, width = self.weight.shape
        yield Target(f"{parent}{self.name}.weight", (channels, 1, width), self.weight.data.unsqueeze(1).copy_)
        if self.bias is not None:
            yield Target(f"{parent}{self.name}.bias", (channels,), self.bias.data.copy_)
