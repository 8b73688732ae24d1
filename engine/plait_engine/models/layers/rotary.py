"""Rotary position embedding (Su et al. 2021): what config.json says of it, and the table of angles."""

from dataclasses import dataclass

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
    given = keys.group("rope_parameters") or keys.group("rope_scaling")
    top = {key: keys.values[key] for key in ("rope_theta", "partial_rotary_factor") if keys.values.get(key) is not None}
    values = top | ({} if given is None else dict(given.values))
    if "rope_theta" not in values:
        raise keys.error("rope_theta is missing, and so is rope_parameters with one in it")
    return spec_of(Keys(values, keys.model_type), head_dim, partial)


def spec_of(rope: Keys, head_dim: int, partial: float = 1.0) -> RotarySpec:
    """``rope``: the rope parameters of one kind of layer, ``rope_theta`` among them."""
    kind = rope.values.get("rope_type", rope.values.get("type", "default"))
    if kind not in ("default", "linear", "mrope"):
        raise rope.error(f"rope_type is {kind!r}; supported: 'default', 'linear'")
    factor = rope.number("factor") if kind == "linear" else 1.0
    dim = int(head_dim * rope.number("partial_rotary_factor", partial))
    if dim % 2 or not 0 < dim <= head_dim:
        raise rope.error(f"partial_rotary_factor or head_dim make rotary embeddings turn {dim} of {head_dim} channels")
    return RotarySpec(rope.number("rope_theta"), dim, factor)


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
