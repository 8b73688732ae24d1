"""Attention whose output passes a sigmoid gate (Qiu et al. 2025, "Gated Attention for Large Language Models")."""

import torch
from torch import Tensor, nn

from plait_engine.models.base import Build, LayerState
from plait_engine.models.layers.attention import AttentionShape, attend, normed_and_turned
from plait_engine.models.layers.linear import Linear, Rows, stacked
from plait_engine.models.layers.norm import RMSNorm
from plait_engine.models.layers.rotary import RotaryTable
from plait_engine.runner.batch import StepBatch


class GatedAttention(nn.Module):
    """Queries, keys, values and the gate come from one matrix; norms over each head of queries and keys."""

    state: LayerState

    def __init__(self, hidden: int, shape: AttentionShape, eps: float, build: Build, *, bias: bool) -> None:
        super().__init__()
        self.shape, self.build = shape, build
        self.specs = (shape.spec(build),)
        self.qkvg = Linear(hidden, _rows(shape), build, bias=bias)
        self.q_norm = RMSNorm(shape.head_dim, eps, build, offset=1.0)
        self.k_norm = RMSNorm(shape.head_dim, eps, build, offset=1.0)
        self.o_proj = Linear(shape.heads * shape.head_dim, stacked({"o_proj": hidden}), build, bias=bias)

    def forward(self, x: Tensor, batch: StepBatch, rotary: RotaryTable) -> Tensor:
        shape = self.shape
        heads = self.qkvg(x).view(len(x), -1, shape.head_dim)
        q, k, v, gate = torch.split_with_sizes(heads, [shape.heads, shape.kv_heads, shape.kv_heads, shape.heads], dim=1)
        # q [tokens, heads, head_dim], k and v [tokens, kv_heads, head_dim]
        q, k = normed_and_turned(q, k, (self.q_norm, self.k_norm), batch.segments.positions, rotary, self.build)
        attended = attend(shape, self.build, self.state, batch, q, k, v)
        out: Tensor = self.o_proj(self.build.kernels.gated_activation(gate.flatten(1), attended, "sigmoid"))
        return out  # [tokens, hidden]


def _rows(shape: AttentionShape) -> dict[str, Rows]:
    """Stored: queries, keys, values, gates. The checkpoint's q_proj lists each head's query and gate in turn."""
    d, q, kv = shape.head_dim, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    gates = q + 2 * kv
    queries_and_gates = (
        range(start + head * d, start + (head + 1) * d) for head in range(shape.heads) for start in (0, gates)
    )
    return {
        "q_proj": tuple(queries_and_gates),
        "k_proj": (range(q, q + kv),),
        "v_proj": (range(q + kv, gates),),
    }
