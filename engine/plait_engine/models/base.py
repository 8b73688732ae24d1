"""What every architecture offers to the engine."""

from abc import ABC, abstractmethod
from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from plait_engine.layer_plan import ModelPlan
from plait_engine.models.targets import Target
from plait_engine.runner.batch import SlotTable, StepBatch
from plait_engine.state.arena import Arena
from plait_engine.state.spec import GroupId, StateGroup
from plait_kernels.select import Kernels
from plait_kernels.storage import Pages, Slots


@dataclass(frozen=True)
class Build:
    """What every module of a model is built with."""

    dtype: torch.dtype
    """Of weights, activations, pages and convolution windows."""
    state_dtype: torch.dtype
    """Of recurrent matrices."""
    kernels: Kernels


@dataclass(frozen=True)
class LayerState:
    """One spec of one layer, bound to the arena: granule-indexed views by tensor name."""

    group: GroupId
    index: int
    """Which of the group's layers this is."""
    views: dict[str, Tensor]

    def pages(self, batch: StepBatch) -> Pages:
        pages = batch.groups[self.group]
        assert isinstance(pages, Pages)
        return pages

    def slots(self, batch: StepBatch) -> Slots:
        table = batch.groups[self.group]
        assert isinstance(table, SlotTable)
        return table.of_layer(self.index)


StateLayout = tuple[tuple[int, tuple[int, ...], tuple[int, ...], torch.dtype], ...]
"""Address, shape, strides and type of each tensor that layers keep state in."""


def layout_of(states: tuple[tuple[LayerState, ...], ...]) -> StateLayout:
    views = (view for of_layer in states for state in of_layer for view in state.views.values())
    return tuple((view.data_ptr(), tuple(view.shape), view.stride(), view.dtype) for view in views)


def bind_states(plan: ModelPlan, arena: Arena) -> tuple[tuple[LayerState, ...], ...]:
    """For each layer its states, in the order of its specs."""

    def bound(group: StateGroup, layer: int) -> LayerState:
        index = group.layers.index(layer)
        views = {t.name: arena.view(group, index, t.name) for t in group.spec.tensors}
        return LayerState(group.id, index, views)

    by_spec = {group.spec: group for group in plan.groups}
    return tuple(tuple(bound(by_spec[spec], layer.index) for spec in layer.specs) for layer in plan.layers)


class Model(nn.Module, ABC):
    """The path of a module is its path in the checkpoint; matrices that read the same input are stored as one.

    Life: built on the meta device, ``to_empty(device=...)``, filled through ``targets``, ``finish_loading``, and bound
    to an arena. What ``weights_bytes`` says on the meta device is what is allocated.
    """

    ignored: ClassVar[tuple[str, ...]] = ()
    """Beginnings of the names of checkpoint tensors that are no part of the language model."""

    plan: ModelPlan
    vocab_size: int
    max_positions: int
    """Tokens that a sequence can have at most."""
    bound: StateLayout = ()
    """What ``bind`` has given to the layers."""

    @classmethod
    @abstractmethod
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
        """The model that config.json describes; ``max_positions`` shortens what the model allows, to save memory."""

    @abstractmethod
    def bind(self, states: tuple[tuple[LayerState, ...], ...]) -> None:
        """Give each layer its state, once, after the arena exists (``bind_states``)."""

    @abstractmethod
    def forward(self, batch: StepBatch) -> Tensor:
        """Hidden states after the last norm, ``[tokens, hidden]``, model dtype."""

    @abstractmethod
    def logits(self, hidden: Tensor) -> Tensor:
        """``[rows, hidden]`` to fp32 logits ``[rows, vocab]``."""

    @abstractmethod
    def targets(self, present: Container[str]) -> Iterator[Target]:
        """What each tensor of a checkpoint that holds the names ``present`` fills."""

    @abstractmethod
    def mirrors(self, present: Container[str]) -> dict[str, Tensor]:
        """Tensors that a checkpoint may repeat: their names, and the parameter that each must equal."""

    @abstractmethod
    def finish_loading(self) -> None:
        """Compute what follows from the configuration and not from the checkpoint. Call once the device is set."""

    @property
    def weights_bytes(self) -> int:
        """Bytes of all parameters and tables; the same on the meta device as where they are allocated."""
        return sum(t.nbytes for t in self.parameters()) + sum(t.nbytes for t in self.buffers())
