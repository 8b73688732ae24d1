"""Rotary position embedding (Su et al. 2021): what config.json says of it, and the table of angles."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from plait_engine.models.config import Keys


@dataclass(frozen=True)
class RotarySpec:
    """``dim`` channels of each head are rotated; ``factor`` stretches positions (linear scaling, Chen et al. 2023)."""

    theta: float
    dim: int
    factor: float = 1.0


def rotary_spec(keys: Keys, head_dim: int, *, partial: float = 1.0) -> RotarySpec:
    """From ``rope_parameters``, or the older ``rope_theta``, ``rope_scaling`` and ``partial_rotary_factor``.

    ``partial`` is the part of the channels that the architecture rotates when the configuration does not say.
    """
    scaling = keys.values.get("rope_parameters") or keys.values.get("rope_scaling") or {}
    old = {key: keys.values[key] for key in ("rope_theta", "partial_rotary_factor") if keys.values.get(key) is not None}
    return spec_of(old | dict(scaling), keys, head_dim, partial)


def spec_of(values: Mapping[str, Any], keys: Keys, head_dim: int, partial: float = 1.0) -> RotarySpec:
    """``values``: one kind's rope parameters, ``rope_theta`` among them."""
    of = Keys(values, keys.model_type)
    kind = values.get("rope_type", values.get("type", "default"))
    if kind not in ("default", "linear", "mrope"):
        raise keys.error(f"rope_type is {kind!r}; supported: 'default', 'linear'")
    factor = of.number("factor") if kind == "linear" else 1.0
    return RotarySpec(of.number("rope_theta"), int(head_dim * of.number("partial_rotary_factor", partial)), factor)


class RotaryTable(nn.Module):
    """fp32 ``[positions, dim]``: cosines in the first half of a row, sines in the second."""

    cos_sin: torch.Tensor

    def __init__(self, spec: RotarySpec, positions: int) -> None:
        super().__init__()
        self.spec = spec
        self.register_buffer("cos_sin", torch.empty(positions, spec.dim, dtype=torch.float32), persistent=False)

    def fill(self) -> None:
        device, half = self.cos_sin.device, self.spec.dim // 2
        exponents = torch.arange(0, self.spec.dim, 2, dtype=torch.float32, device=device) / self.spec.dim
        frequencies = 1.0 / self.spec.theta**exponents / self.spec.factor
        positions = torch.arange(len(self.cos_sin), dtype=torch.float32, device=device)
        angles = torch.outer(positions, frequencies)
        torch.cos(angles, out=self.cos_sin[:, :half])
        torch.sin(angles, out=self.cos_sin[:, half:])
