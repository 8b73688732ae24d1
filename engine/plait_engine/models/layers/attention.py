"""Grouped-query attention over pages (Ainslie et al. 2023), with the variations that configurations ask for."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from plait_engine.models.base import Build, LayerState
from plait_engine.models.layers.linear import Linear, stacked
from plait_engine.models.layers.norm import RMSNorm
from plait_engine.models.layers.rotary import RotaryTable
from plait_engine.runner.batch import StepBatch
from plait_engine.state.spec import PagedSpec, TensorSpec


@dataclass(frozen=True)
class AttentionShape:
    """``window``: a token attends to itself and the ``window - 1`` tokens before it."""

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    window: int | None = None
    softcap: float | None = None

    def spec(self, build: Build) -> PagedSpec:
        kind = "full_attention" if self.window is None else "sliding_attention"
        entry = (self.kv_heads, self.head_dim)
        return PagedSpec(kind, (TensorSpec("k", entry, build.dtype), TensorSpec("v", entry, build.dtype)), self.window)


def attend(
    shape: AttentionShape, build: Build, state: LayerState, batch: StepBatch, q: Tensor, k: Tensor, v: Tensor
) -> Tensor:
    """``q [tokens, heads, head_dim]``, k and v with ``kv_heads``, to ``[tokens, heads * head_dim]``."""
    out = build.kernels.paged_attention(
        q,
        k,
        v,
        state.views["k"],
        state.views["v"],
        state.pages(batch),
        batch.segments,
        scale=shape.scale,
        window=shape.window,
        softcap=shape.softcap,
    )
    return out.flatten(1)


def normed_and_turned(
    q: Tensor, k: Tensor, norms: tuple[RMSNorm, RMSNorm], positions: Tensor, rotary: RotaryTable | None, build: Build
) -> tuple[Tensor, Tensor]:
    """Queries and keys after the norm over each head and rotary."""
    joined, (q_norm, k_norm) = build.kernels.qk_rotary, norms
    if joined is not None:
        table = None if rotary is None else rotary.cos_sin
        return joined(q, k, q_norm.weight, k_norm.weight, q_norm.eps, positions, table, offset=q_norm.offset)
    q, k = q_norm(q), k_norm(k)
    if rotary is None:
        return q, k
    turn = build.kernels.rotary
    return turn(q, positions, rotary.cos_sin), turn(k, positions, rotary.cos_sin)


class Attention(nn.Module):
    """q, k and v are one matrix. Subclasses that norm queries and keys set ``q_norm`` and ``k_norm``."""

    state: LayerState

    def __init__(
        self, hidden: int, shape: AttentionShape, build: Build, *, bias: bool = False, output: str = "o_proj"
    ) -> None:
        super().__init__()
        self.shape, self.build = shape, build
        self.specs = (shape.spec(build),)
        q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.qkv = Linear(hidden, stacked({"q_proj": q, "k_proj": kv, "v_proj": kv}), build, bias=bias)
        self.out = Linear(q, stacked({output: hidden}), build, bias=bias)

    def norms(self) -> tuple[RMSNorm, RMSNorm] | None:
        """Norms over each head of queries and of keys, where the architecture has them."""
        return None

    def forward(self, x: Tensor, batch: StepBatch, rotary: RotaryTable | None) -> Tensor:
        shape, positions = self.shape, batch.segments.positions
        heads = self.qkv(x).view(len(x), -1, shape.head_dim)  # [tokens, heads + 2 * kv_heads, head_dim]
        qk, v = torch.split_with_sizes(heads, [shape.heads + shape.kv_heads, shape.kv_heads], dim=1)
        norms = self.norms()
        if norms is None and rotary is not None:
            qk = self.build.kernels.rotary(qk, positions, rotary.cos_sin)
        q, k = torch.split_with_sizes(qk, [shape.heads, shape.kv_heads], dim=1)
        if norms is not None:
            q, k = normed_and_turned(q, k, norms, positions, rotary, self.build)
        out: Tensor = self.out(attend(shape, self.build, self.state, batch, q, k, v))
        return out  # [tokens, hidden]
