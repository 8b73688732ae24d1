"""``moe`` in plain PyTorch: each expert that was chosen, with the tokens that chose it."""

import torch
from torch import Tensor
from torch.nn import functional as F

from plait_kernels.gated_activation import Kind
from plait_kernels.gated_activation.reference import gated_activation


def moe(
    x: Tensor,
    expert_ids: Tensor,
    expert_weights: Tensor,
    gate_up: Tensor,
    down: Tensor,
    *,
    activation: Kind,
) -> Tensor:
    parts = x.new_zeros(*expert_ids.shape, x.shape[1], dtype=torch.float32)  # [T, k, n]
    for expert in sorted(set(expert_ids.flatten().tolist())):
        tokens, choices = torch.where(expert_ids == expert)
        gate, up = F.linear(x[tokens], gate_up[expert]).chunk(2, dim=-1)
        parts[tokens, choices] = F.linear(gated_activation(gate, up, activation), down[expert]).float()
    # Summed in the order of the token's choices, not of the experts, so that no other token has a say in the rounding.
    return (parts * expert_weights.float().unsqueeze(-1)).sum(1).to(x.dtype)
