"""The demo model for training: a dense `granitemoehybrid` written out in plain torch.

Parameters that are one matrix in the exported folder are kept apart here where the optimiser should treat them
apart (gate, input, B, C and step size of a Mamba layer; the two halves of an MLP). `export.py` joins them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from demo.scan import CHUNK, chunk_scan

MAMBA: Final = "mamba"
ATTENTION: Final = "attention"


@dataclass(frozen=True)
class ModelConfig:
    """Shape of the model; the defaults are the demo."""

    vocabulary: int = 8192
    hidden: int = 320
    layers: tuple[str, ...] = (MAMBA, MAMBA, ATTENTION, MAMBA, MAMBA, ATTENTION, MAMBA, MAMBA)
    mlp: int = 896
    attention_heads: int = 5
    mamba_heads: int = 10
    head: int = 64  # of attention and Mamba alike
    state: int = 64
    conv: int = 4
    max_positions: int = 8192
    embedding_multiplier: float = 12.0
    norm_eps: float = 1e-5

    @property
    def inner(self) -> int:
        """Channels inside a Mamba layer."""
        return self.mamba_heads * self.head

    @property
    def attention_multiplier(self) -> float:
        return 1 / math.sqrt(self.head)


TINY: Final = ModelConfig(
    vocabulary=512, hidden=64, layers=(MAMBA, ATTENTION, MAMBA), mlp=96, attention_heads=2, mamba_heads=4, head=32,
    state=16,
)  # fmt: skip


def matrix(rows: int, columns: int, std: float) -> nn.Parameter:
    return nn.Parameter(torch.randn(rows, columns) * std)


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """x W^T in the dtype of x; the fp32 weight stays what the optimiser sees."""
    return F.linear(x, weight.to(x.dtype))


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps) * self.weight).to(x.dtype)


class Mamba(nn.Module):
    """Mamba-2 with one group and a gated norm. x, B and C pass the short convolution, the gate does not."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        hidden, inner, heads = config.hidden, config.inner, config.mamba_heads
        std = 1 / math.sqrt(hidden)
        self.config = config
        self.gate = matrix(inner, hidden, std)
        self.x = matrix(inner, hidden, std)
        self.b = matrix(config.state, hidden, std)
        self.c = matrix(config.state, hidden, std)
        self.dt = matrix(heads, hidden, 0.1 * std)
        self.conv_weight = nn.Parameter(torch.rand(inner + 2 * config.state, config.conv) - 0.5)
        self.conv_bias = nn.Parameter(torch.zeros(inner + 2 * config.state))
        # Step sizes from 0.001 to 0.1 and rates from 1 to 16, as in the Mamba-2 paper: memories from 1 to 1,000.
        step = torch.exp(torch.linspace(math.log(1e-3), math.log(0.1), heads))
        self.dt_bias = nn.Parameter(step + torch.log(-torch.expm1(-step)))
        self.a_log = nn.Parameter(torch.log(1 + 15 * torch.rand(heads)))
        self.d = nn.Parameter(torch.ones(heads))
        self.norm = nn.Parameter(torch.ones(inner))
        self.out = matrix(hidden, inner, 0.5 / math.sqrt(inner))

    def forward(self, hidden: Tensor) -> Tensor:
        """[batch, length, hidden] -> the same; length is a multiple of the chunk."""
        config = self.config
        batch, length, _ = hidden.shape
        weights = torch.cat([self.gate, self.x, self.b, self.c, self.dt])
        projected = linear(hidden, weights)
        gate, mixed, dt = torch.split(
            projected, [config.inner, config.inner + 2 * config.state, config.mamba_heads], dim=-1
        )
        mixed = F.silu(self._convolve(mixed))
        x, b, c = torch.split(mixed, [config.inner, config.state, config.state], dim=-1)
        x = x.reshape(batch, length, config.mamba_heads, config.head)
        steps = F.softplus(dt.float() + self.dt_bias)
        y = chunk_scan(x, steps, -self.a_log.exp(), b, c, min(CHUNK, length))
        y = y + x * self.d.to(x.dtype)[:, None]
        return linear(self._gated_norm(y.flatten(2), gate), self.out)

    def _convolve(self, mixed: Tensor) -> Tensor:
        """Causal convolution over positions, one filter per channel, as a sum of shifts (fuses well)."""
        width = self.config.conv
        length = mixed.shape[1]
        padded = F.pad(mixed, (0, 0, width - 1, 0))
        weight = self.conv_weight.to(mixed.dtype)
        total = self.conv_bias.to(mixed.dtype).expand_as(mixed)
        for tap in range(width):
            total = total + padded[:, tap : tap + length] * weight[:, tap]
        return total

    def _gated_norm(self, y: Tensor, gate: Tensor) -> Tensor:
        wide = y.float() * F.silu(gate.float())
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.config.norm_eps)
        return (wide * self.norm).to(y.dtype)


class Attention(nn.Module):
    """Causal attention without any position: order comes from the Mamba layers below."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        size = config.attention_heads * config.head
        std = 1 / math.sqrt(config.hidden)
        self.config = config
        self.q = matrix(size, config.hidden, std)
        self.k = matrix(size, config.hidden, std)
        self.v = matrix(size, config.hidden, std)
        self.out = matrix(config.hidden, size, 0.5 / math.sqrt(size))

    def forward(self, hidden: Tensor) -> Tensor:
        shape = (*hidden.shape[:2], self.config.attention_heads, self.config.head)
        q, k, v = (linear(hidden, weight).reshape(shape).transpose(1, 2) for weight in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.config.attention_multiplier)
        return linear(y.transpose(1, 2).flatten(2), self.out)


class MLP(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        std = 1 / math.sqrt(config.hidden)
        self.gate = matrix(config.mlp, config.hidden, std)
        self.up = matrix(config.mlp, config.hidden, std)
        self.down = matrix(config.hidden, config.mlp, 0.5 / math.sqrt(config.mlp))

    def forward(self, hidden: Tensor) -> Tensor:
        return linear(F.silu(linear(hidden, self.gate)) * linear(hidden, self.up), self.down)


class Layer(nn.Module):
    def __init__(self, config: ModelConfig, kind: str) -> None:
        super().__init__()
        self.norm_mixer = RMSNorm(config.hidden, config.norm_eps)
        self.mixer: Mamba | Attention = Mamba(config) if kind == MAMBA else Attention(config)
        self.norm_mlp = RMSNorm(config.hidden, config.norm_eps)
        self.mlp = MLP(config)

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = hidden + self.mixer(self.norm_mixer(hidden))
        out: Tensor = hidden + self.mlp(self.norm_mlp(hidden))
        return out


class Model(nn.Module):
    """Token ids to final hidden states; the embedding is also the head."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = matrix(config.vocabulary, config.hidden, 0.02)
        self.layers = nn.ModuleList(Layer(config, kind) for kind in config.layers)
        self.norm = RMSNorm(config.hidden, config.norm_eps)

    def forward(self, ids: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """[batch, length] -> [batch, length, hidden]; `dtype` is what the layers compute in."""
        hidden = (F.embedding(ids, self.embedding) * self.config.embedding_multiplier).to(dtype)
        for layer in self.layers:
            hidden = layer(hidden)
        normed: Tensor = self.norm(hidden)
        return normed

    def typed_layers(self) -> list[Layer]:
        """The layers as what they are; `nn.ModuleList` has lost their type."""
        return [layer for layer in self.layers if isinstance(layer, Layer)]

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., hidden] -> [..., vocabulary]."""
        return linear(hidden, self.embedding)


def parameter_count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
