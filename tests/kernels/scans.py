"""The three scans under one interface, so that what must hold for a scan is said once."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from plait_kernels.segments import Segments
from plait_kernels.select import Kernels
from plait_kernels.storage import Slots
from tests.kernels import naive

Inputs = dict[str, Tensor]
"""Per-token tensors, each ``[tokens, ...]``."""


class Scan(ABC):
    inner: tuple[int, ...]
    state_dtype = torch.float32

    @abstractmethod
    def inputs(self, tokens: int, random: torch.Generator, dtype: torch.dtype) -> Inputs: ...

    @abstractmethod
    def run(self, kernels: Kernels, inputs: Inputs, view: Tensor, slots: Slots, segments: Segments) -> Tensor: ...

    @abstractmethod
    def truth(self, inputs: Inputs, state: Tensor) -> tuple[Tensor, Tensor]: ...


def normal(random: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=random)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@dataclass
class Conv(Scan):
    channels: int = 12
    width: int = 4
    biased: bool = True
    activation: str | None = "silu"
    state_dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        self.inner = (self.channels, self.width - 1)
        self.weight = normal(seeded(1), self.channels, self.width)
        self.bias = normal(seeded(2), self.channels) if self.biased else None

    def inputs(self, tokens: int, random: torch.Generator, dtype: torch.dtype) -> Inputs:
        return {"x": normal(random, tokens, self.channels).to(dtype)}

    def _weights(self, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
        return self.weight.to(dtype), None if self.bias is None else self.bias.to(dtype)

    def run(self, kernels: Kernels, inputs: Inputs, view: Tensor, slots: Slots, segments: Segments) -> Tensor:
        weight, bias = self._weights(inputs["x"].dtype)
        assert self.activation in ("silu", None)
        return kernels.causal_conv(
            inputs["x"], weight, bias, view, slots, segments, activation="silu" if self.activation else None
        )

    def truth(self, inputs: Inputs, state: Tensor) -> tuple[Tensor, Tensor]:
        return naive.causal_conv(inputs["x"], *self._weights(inputs["x"].dtype), state, self.activation)


@dataclass
class Ssd(Scan):
    heads: int = 6
    head_dim: int = 8
    groups: int = 2
    state: int = 16
    dt_limit: tuple[float, float] = (0.0, float("inf"))
    dt_scale: float = 1.0

    def __post_init__(self) -> None:
        self.inner = (self.heads, self.head_dim, self.state)
        self.a_log = normal(seeded(1), self.heads)
        self.d = normal(seeded(2), self.heads)
        self.dt_bias = normal(seeded(3), self.heads)

    def inputs(self, tokens: int, random: torch.Generator, dtype: torch.dtype) -> Inputs:
        return {
            "x": normal(random, tokens, self.heads, self.head_dim).to(dtype),
            "dt": (normal(random, tokens, self.heads) * self.dt_scale).to(dtype),
            "b": normal(random, tokens, self.groups, self.state).to(dtype),
            "c": normal(random, tokens, self.groups, self.state).to(dtype),
        }

    def run(self, kernels: Kernels, inputs: Inputs, view: Tensor, slots: Slots, segments: Segments) -> Tensor:
        x, dt, b, c = (inputs[name] for name in ("x", "dt", "b", "c"))
        return kernels.ssd(x, dt, self.a_log, b, c, self.d, self.dt_bias, view, slots, segments, dt_limit=self.dt_limit)

    def truth(self, inputs: Inputs, state: Tensor) -> tuple[Tensor, Tensor]:
        x, dt, b, c = (inputs[name] for name in ("x", "dt", "b", "c"))
        return naive.ssd(x, dt, self.a_log, b, c, self.d, self.dt_bias, state, self.dt_limit)


@dataclass
class Delta(Scan):
    key_heads: int = 2
    value_heads: int = 6
    key_dim: int = 8
    value_dim: int = 16

    def __post_init__(self) -> None:
        self.inner = (self.value_heads, self.key_dim, self.value_dim)
        self.a_log = normal(seeded(1), self.value_heads)
        self.dt_bias = normal(seeded(2), self.value_heads)

    def inputs(self, tokens: int, random: torch.Generator, dtype: torch.dtype) -> Inputs:
        return {
            "q": normal(random, tokens, self.key_heads, self.key_dim).to(dtype),
            "k": normal(random, tokens, self.key_heads, self.key_dim).to(dtype),
            "v": normal(random, tokens, self.value_heads, self.value_dim).to(dtype),
            "a": normal(random, tokens, self.value_heads).to(dtype),
            "b": normal(random, tokens, self.value_heads).to(dtype),
        }

    def run(self, kernels: Kernels, inputs: Inputs, view: Tensor, slots: Slots, segments: Segments) -> Tensor:
        q, k, v, a, b = (inputs[name] for name in ("q", "k", "v", "a", "b"))
        return kernels.gated_delta_rule(q, k, v, a, b, self.a_log, self.dt_bias, view, slots, segments)

    def truth(self, inputs: Inputs, state: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v, a, b = (inputs[name] for name in ("q", "k", "v", "a", "b"))
        return naive.gated_delta_rule(q, k, v, a, b, self.a_log, self.dt_bias, state)
