"""What all causal language models share: embedding, head, the checkpoint's names, binding to an arena."""

from abc import ABC, abstractmethod
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from plait_engine.layer_plan import LayerPlan, ModelPlan
from plait_engine.models.base import Build, LayerState, Model, layout_of
from plait_engine.models.config import ConfigError
from plait_engine.models.layers.linear import Linear, stacked
from plait_engine.models.layers.rotary import RotaryTable
from plait_engine.models.targets import Target, targets_of
from plait_engine.runner.batch import StepBatch
from plait_engine.state.spec import StateSpec
from plait_kernels.select import Kernels


@dataclass(frozen=True)
class ModelConfig(ABC):
    """What every architecture's configuration says; each adds its own."""

    kinds: tuple[str, ...]
    vocab_size: int
    hidden: int
    max_positions: int
    tied: bool
    """The head is the embedding."""
    eps: float
    """Of the norms."""

    @classmethod
    @abstractmethod
    def parse(cls, config: dict[str, Any]) -> Self:
        """From config.json; a ``ConfigError`` or ``LayerPlanError`` names what is missing or not understood."""


class Layer(nn.Module):
    """One decoder layer. ``mixer`` keeps the state; an architecture's own class names its modules as the checkpoint."""

    specs: tuple[StateSpec, ...]
    kind: str
    mlp_kind: str

    def bind(self, states: tuple[LayerState, ...]) -> None:
        """Hand each state to the module that declared its spec."""
        raise NotImplementedError

    def forward(
        self, delta: Tensor | None, residual: Tensor, batch: StepBatch, rotary: RotaryTable | None
    ) -> tuple[Tensor, Tensor]:
        """``(delta, residual)``, both ``[tokens, hidden]``; the next norm sees their sum, the residual stream."""
        raise NotImplementedError


@dataclass(frozen=True)
class Names:
    """How a checkpoint names the two halves of a model."""

    body: str
    head: str
    """Before ``lm_head``."""


LAYOUTS = (
    Names("model.", ""),
    Names("model.language_model.", ""),
    Names("language_model.model.", "language_model."),
)
"""Alone, and inside multimodal models as transformers stores them now and as it did before."""


class Embedding(nn.Module):
    def __init__(self, vocab_size: int, hidden: int, build: Build) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, hidden, dtype=build.dtype), requires_grad=False)

    def forward(self, token_ids: Tensor) -> Tensor:
        """``[tokens]`` to ``[tokens, hidden]``."""
        return nn.functional.embedding(token_ids, self.weight)


class CausalModel(Model):
    """Subclasses build ``layers`` and the last norm, and write ``forward``."""

    config_class: ClassVar[type[ModelConfig]]
    layers: nn.ModuleList

    def __init__(self, config: ModelConfig, build: Build, page_size: int, max_positions: int) -> None:
        super().__init__()
        self.vocab_size, self.page_size, self.max_positions = config.vocab_size, page_size, max_positions
        self.build = build
        self.embed_tokens = Embedding(config.vocab_size, config.hidden, build)
        self.lm_head = None if config.tied else Linear(config.hidden, stacked({"lm_head": config.vocab_size}), build)

    @classmethod
    def from_config(
        cls,
        config: dict[str, Any],
        *,
        dtype: torch.dtype,
        state_dtype: torch.dtype,
        page_size: int,
        kernels: Kernels,
        max_positions: int | None = None,
    ) -> Self:
        parsed = cls.config_class.parse(config)
        length = _positions(max_positions, parsed.max_positions)
        return cls(parsed, Build(dtype, state_dtype, kernels), page_size, length)

    def planned(self, layers: Sequence[Layer]) -> ModelPlan:
        self.layers = nn.ModuleList(layers)
        plans = (LayerPlan(i, layer.kind, layer.mlp_kind, layer.specs) for i, layer in enumerate(layers))
        return ModelPlan.of(tuple(plans), self.page_size)

    def bind(self, states: tuple[tuple[LayerState, ...], ...]) -> None:
        for layer, of_layer in zip(self.layers, states, strict=True):
            assert isinstance(layer, Layer)
            layer.bind(of_layer)
        self.bound = layout_of(states)

    def logits(self, hidden: Tensor) -> Tensor:
        head = self.embed_tokens.weight if self.lm_head is None else self.lm_head.weight
        return self.build.kernels.linear(hidden, head, out_dtype=torch.float32)

    def finish_loading(self) -> None:
        for module in self.modules():
            if isinstance(module, RotaryTable):
                module.fill()

    def targets(self, present: Container[str]) -> Iterator[Target]:
        names = _layout(present)
        for name, module in self.named_children():
            if name != "lm_head":
                yield from targets_of(module, f"{names.body}{name}.", present)
        if self.lm_head is not None:
            yield from self.lm_head.targets(names.head, present)

    def mirrors(self, present: Container[str]) -> dict[str, Tensor]:
        name = _layout(present).head + "lm_head.weight"
        return {name: self.embed_tokens.weight.data} if self.lm_head is None and name in present else {}


def _positions(asked: int | None, allowed: int) -> int:
    """How many positions the model gets: what was asked for, if config.json allows it."""
    if asked is not None and asked > allowed:
        raise ConfigError(f"a length of {asked} is beyond max_position_embeddings in config.json, {allowed}")
    return asked or allowed


def _layout(present: Container[str]) -> Names:
    return next((names for names in LAYOUTS if names.body + "embed_tokens.weight" in present), LAYOUTS[0])
