"""Muon for the matrices, AdamW for everything else.

Source: Jordan et al., "Muon: an optimizer for hidden layers in neural networks" (2024): momentum, then the update is
replaced by the nearest orthogonal matrix, found by five Newton-Schulz steps in bf16.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final

import torch
from torch import Tensor, nn

from demo.model import Model

NEWTON_SCHULZ: Final = (3.4445, -4.7750, 2.0315)
MUON_LR: Final = 0.02
MUON_MOMENTUM: Final = 0.95
MUON_DECAY: Final = 0.05
ADAM_LR: Final = 2e-3
ADAM_BETAS: Final = (0.9, 0.95)
ADAM_DECAY: Final = 0.1

# Ends of the names of parameters that are matrices in the sense of Muon.
MATRICES: Final = (".gate", ".x", ".b", ".c", ".out", ".q", ".k", ".v", ".up", ".down")


def orthogonal(update: Tensor) -> Tensor:
    """[n, rows, columns] -> matrices of the same row and column space with all singular values near 1."""
    a, b, c = NEWTON_SCHULZ
    x = update.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) * 1.02 + 1e-6)
    for _ in range(5):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    result: Tensor = (x.mT if tall else x).to(update.dtype)
    return result


class Muon:
    """Parameters of one shape are updated together."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        by_shape: dict[torch.Size, list[Tensor]] = defaultdict(list)
        for parameter in parameters:
            by_shape[parameter.shape].append(parameter)
        self.groups = list(by_shape.values())
        self.momenta = [torch.zeros_like(torch.stack([p.detach() for p in group])) for group in self.groups]

    @torch.no_grad()
    def step(self, scale: float) -> None:
        """One update; `scale` is the schedule's factor on the learning rate."""
        rate = MUON_LR * scale
        for group, momentum in zip(self.groups, self.momenta, strict=True):
            gradient = torch.stack([parameter.grad for parameter in group if parameter.grad is not None])
            momentum.lerp_(gradient, 1 - MUON_MOMENTUM)
            update = orthogonal(gradient.lerp(momentum, MUON_MOMENTUM))
            rows, columns = update.shape[1:]
            update *= rate * max(1.0, rows / columns) ** 0.5
            torch._foreach_mul_(group, 1 - rate * MUON_DECAY)
            torch._foreach_sub_(group, list(torch.unbind(update)))


class Optimizer:
    """Both optimisers behind one step."""

    def __init__(self, model: Model) -> None:
        named = dict(model.named_parameters())
        matrices = [p for name, p in named.items() if name.startswith("layers.") and name.endswith(MATRICES)]
        chosen = {id(parameter) for parameter in matrices}
        rest = [p for p in named.values() if id(p) not in chosen and p is not model.embedding]
        self.parameters = list(named.values())
        self.muon = Muon(matrices)
        self.adam = torch.optim.AdamW(
            [{"params": [model.embedding], "weight_decay": ADAM_DECAY}, {"params": rest, "weight_decay": 0.0}],
            lr=ADAM_LR,
            betas=ADAM_BETAS,
            fused=model.embedding.is_cuda,
        )

    def step(self, scale: float) -> Tensor:
        """Clip, update, clear the gradients; returns the gradient's norm before clipping."""
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        for group in self.adam.param_groups:
            group["lr"] = ADAM_LR * scale
        self.adam.step()
        self.muon.step(scale)
        for parameter in self.parameters:
            parameter.grad = None
        return norm

    def state_dict(self) -> dict[str, Any]:
        return {"adam": self.adam.state_dict(), "momenta": self.muon.momenta}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.adam.load_state_dict(state["adam"])
        for own, stored in zip(self.muon.momenta, state["momenta"], strict=True):
            own.copy_(stored)
