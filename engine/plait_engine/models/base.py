"""What every architecture offers to the engine."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor, nn

from plait_engine.layer_plan import ModelPlan
from plait_engine.runner.batch import SlotTable, StepBatch
from plait_engine.state.arena import Arena
from plait_engine.state.spec import GroupId, StateGroup
from plait_kernels.storage import Pages, Slots


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


def bind_states(plan: ModelPlan, arena: Arena) -> tuple[tuple[LayerState, ...], ...]:
    """For each layer its states, in the order of its specs."""

    def bound(group: StateGroup, layer: int) -> LayerState:
        index = group.layers.index(layer)
        views = {t.name: arena.view(group, index, t.name) for t in group.spec.tensors}
        return LayerState(group.id, index, views)

    by_spec = {group.spec: group for group in plan.groups}
    return tuple(tuple(bound(by_spec[spec], layer.index) for spec in layer.specs) for layer in plan.layers)


class Model(nn.Module, ABC):
    """Parameters are named as in the checkpoint. Built on the meta device, filled by the loader, then bound to an arena."""

    plan: ModelPlan

    @abstractmethod
    def bind(self, states: tuple[tuple[LayerState, ...], ...]) -> None:
        """Give each layer its state, once, after the arena exists (``bind_states``)."""

    @abstractmethod
    def forward(self, batch: StepBatch) -> Tensor:
        """Hidden states after the last norm, ``[tokens, hidden]``, model dtype."""

    @abstractmethod
    def logits(self, hidden: Tensor) -> Tensor:
        """``[rows, hidden]`` to fp32 logits ``[rows, vocab]``."""
