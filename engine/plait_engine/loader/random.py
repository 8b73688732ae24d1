"""Random weights for ``--load-format random``: of a scale that keeps signals finite and lets logits vary."""

import math

import torch
from torch import Tensor, nn

from plait_engine.models.base import Model
from plait_engine.models.layers.norm import RMSNorm

PIECE = 1 << 26
"""Numbers that are drawn at a time: there is little memory beside the arena."""


def randomise(model: Model, seed: int = 0) -> None:
    """Fill every parameter where it lies, the same on every run on one kind of device for one ``seed``."""
    generators: dict[torch.device, torch.Generator] = {}
    with torch.no_grad():
        for module in model.modules():
            for name, parameter in module.named_parameters(recurse=False):
                device = parameter.device
                if device not in generators:
                    generators[device] = torch.Generator(device).manual_seed(seed)
                for part in torch.split(parameter, max(1, PIECE * len(parameter) // parameter.numel())):
                    part.copy_(_values(module, name, part.shape, generators[device]))


def _values(module: nn.Module, name: str, shape: torch.Size, generator: torch.Generator) -> Tensor:
    device = generator.device
    noise = torch.randn(shape, generator=generator, device=device)
    if isinstance(module, RMSNorm):
        return 1.0 - module.offset + 0.1 * noise
    if name == "A_log":  # decay rates between 1 and 16, as Mamba-2 draws them
        return torch.log(1 + 15 * torch.rand(shape, generator=generator, device=device))
    if name == "dt_bias":  # inverse softplus of time steps between 0.001 and 0.1
        steps = torch.exp(torch.rand(shape, generator=generator, device=device) * math.log(100) + math.log(0.001))
        return steps + torch.log(-torch.expm1(-steps))
    if name == "D":
        return 1.0 + 0.1 * noise
    if noise.dim() == 1:
        return 0.02 * noise
    return noise / math.sqrt(shape[-1])
