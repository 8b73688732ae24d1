"""Mixture of experts with a gated shared expert, as in Qwen2-MoE and its successors."""

from dataclasses import dataclass

from torch import Tensor, nn

from plait_engine.models.base import Build
from plait_engine.models.layers.experts import Experts, Router
from plait_engine.models.layers.linear import Linear, stacked
from plait_engine.models.layers.mlp import GatedMLP


@dataclass(frozen=True)
class MoeShape:
    experts: int
    per_token: int
    inner: int
    shared_inner: int
    renormalise: bool
    """The chosen experts' weights add up to one."""


class SparseMoe(nn.Module):
    """Softmax over all experts, then the best ``per_token`` of them."""

    kind = "moe"

    def __init__(self, hidden: int, shape: MoeShape, build: Build) -> None:
        super().__init__()
        self.shape = shape
        self.router = Router(hidden, shape.experts, build, spellings=("gate.weight",))
        self.experts = Experts(
            hidden,
            shape.inner,
            shape.experts,
            build,
            stacked_names=(("experts.gate_up_proj", "experts.down_proj"),),
            single_names=(
                "experts.{}.gate_proj.weight",
                "experts.{}.up_proj.weight",
                "experts.{}.down_proj.weight",
            ),
        )
        self.shared_expert = GatedMLP(hidden, shape.shared_inner, build)
        self.shared_gate = Linear(hidden, stacked({"shared_expert_gate": 1}), build)

    def forward(self, x: Tensor) -> Tensor:
        weights, ids = self.router(x).softmax(-1).topk(self.shape.per_token, dim=-1)  # [tokens, per_token], fp32
        if self.shape.renormalise:
            weights = weights / weights.sum(-1, keepdim=True)
        shared = self.shared_gate(x).sigmoid() * self.shared_expert(x)
        out: Tensor = self.experts(x, ids, weights) + shared
        return out  # [tokens, hidden]
