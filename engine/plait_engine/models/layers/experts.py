"""Mixture of experts (Shazeer et al. 2017): the router's scores, and the experts as two stacked tensors."""

from collections.abc import Container, Iterator

import torch
from torch import Tensor, nn

from plait_engine.models.base import Build
from plait_engine.models.config import Keys
from plait_engine.models.targets import Packed, Target
from plait_kernels.gated_activation import Kind


def experts_per_token(keys: Keys, experts: int) -> int:
    """How many of the experts see each token."""
    chosen = keys.integer("num_experts_per_tok")
    if chosen > experts:
        raise keys.error(f"num_experts_per_tok is {chosen}, but there are only {experts} experts")
    return chosen


class Router(Packed):
    """fp32 weight and logits: a rounded score would send a token to another expert.

    ``spellings``: the checkpoint's names for the weight within the parent module; the first is the usual one.
    """

    def __init__(self, hidden: int, experts: int, build: Build, *, spellings: tuple[str, ...]) -> None:
        super().__init__()
        self.spellings, self.kernels = spellings, build.kernels
        self.weight = nn.Parameter(torch.empty(experts, hidden, dtype=torch.float32), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """``[tokens, hidden]`` to fp32 logits ``[tokens, experts]``."""
        return self.kernels.linear(x.float(), self.weight)

    def targets(self, parent: str, present: Container[str]) -> Iterator[Target]:
        name = next((s for s in self.spellings if parent + s in present), self.spellings[0])
        yield Target(parent + name, tuple(self.weight.shape), self.weight.data.copy_)


class Experts(Packed):
    """``gate_up [experts, 2 * inner, hidden]``, ``down [experts, hidden, inner]``.

    ``stacked_names``: the checkpoint's pairs of names within the parent module when it stacks them as we do.
    ``single_names``: names of one expert's gate, up and down, with ``{}`` for its number, when it does not.
    """

    def __init__(
        self,
        hidden: int,
        inner: int,
        experts: int,
        build: Build,
        *,
        activation: Kind = "silu",
        stacked_names: tuple[tuple[str, str], ...],
        single_names: tuple[str, str, str] | None = None,
    ) -> None:
        super().__init__()
        self.activation, self.kernels = activation, build.kernels
        self.stacked_names, self.single_names = stacked_names, single_names
        self.gate_up = nn.Parameter(torch.empty(experts, 2 * inner, hidden, dtype=build.dtype), requires_grad=False)
        self.down = nn.Parameter(torch.empty(experts, hidden, inner, dtype=build.dtype), requires_grad=False)

    def forward(self, x: Tensor, expert_ids: Tensor, expert_weights: Tensor) -> Tensor:
        """``x [tokens, hidden]``, ids int64 and weights fp32 ``[tokens, k]``, to ``[tokens, hidden]``."""
        return self.kernels.moe(x, expert_ids, expert_weights, self.gate_up, self.down, activation=self.activation)

    def targets(self, parent: str, present: Container[str]) -> Iterator[Target]:
        for gate_up, down in self.stacked_names:
            if parent + gate_up in present:
                yield Target(parent + gate_up, tuple(self.gate_up.shape), self.gate_up.data.copy_)
                yield Target(parent + down, tuple(self.down.shape), self.down.data.copy_)
                return
        if self.single_names is None:
            yield Target(parent + self.stacked_names[0][0], tuple(self.gate_up.shape), self.gate_up.data.copy_)
            yield Target(parent + self.stacked_names[0][1], tuple(self.down.shape), self.down.data.copy_)
            return
        yield from self._single(parent, self.single_names)

    def _single(self, parent: str, names: tuple[str, str, str]) -> Iterator[Target]:
        inner = self.down.shape[2]
        for expert, (gate_up, down) in enumerate(zip(self.gate_up.data, self.down.data, strict=True)):
            for name, matrix in zip(names, (gate_up[:inner], gate_up[inner:], down), strict=True):
                yield Target(parent + name.format(expert), tuple(matrix.shape), matrix.copy_)
