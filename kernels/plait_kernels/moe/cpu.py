"""``moe`` over the compiled products: experts are walked in Python, their work is done in C++."""

import torch
from torch import Tensor

from plait_kernels.gated_activation import GatedActivation, Kind
from plait_kernels.linear import Linear
from plait_kernels.moe import Moe


def cpu_moe(linear: Linear, gated_activation: GatedActivation) -> Moe:
    def moe(
        x: Tensor,
        expert_ids: Tensor,
        expert_weights: Tensor,
        gate_up: Tensor,
        down: Tensor,
        *,
        activation: Kind,
    ) -> Tensor:
        tokens, k = expert_ids.shape
        parts = torch.empty((tokens * k, x.shape[1]), dtype=torch.float32)
        by_expert = expert_ids.flatten().argsort(stable=True)
        counts = torch.bincount(expert_ids.flatten(), minlength=gate_up.shape[0]).tolist()
        inner = down.shape[2]
        for expert, rows in enumerate(by_expert.split(counts)):  # type: ignore[no-untyped-call]
            if len(rows):
                both = linear(x[rows // k], gate_up[expert])
                inside = gated_activation(both[:, :inner], both[:, inner:], activation)
                parts[rows] = linear(inside, down[expert]).float()
        # Summed in the order of the token's choices, so that no other token has a say in the rounding.
        weighted = parts.view(tokens, k, -1) * expert_weights.float().unsqueeze(-1)
        return weighted.sum(1).to(x.dtype)

    return moe
