"""One step as arrays: what a model's forward is given."""

from dataclasses import dataclass

from torch import Tensor

from plait_kernels.segments import Segments
from plait_kernels.storage import Pages, Slots


@dataclass(frozen=True)
class SlotTable:
    """Rows of one slot group: ``rows`` int32 ``[layers, sequences]``, ``emits`` int32 ``[layers, chunks]`` or None."""

    rows: Tensor
    emits: Tensor | None = None

    def of_layer(self, index: int) -> Slots:
        return Slots(self.rows[index], None if self.emits is None else self.emits[index])


@dataclass(frozen=True)
class StepBatch:
    """``token_ids`` int64 ``[tokens]``, decodes first; ``groups[group_id]`` is the paged group's ``Pages`` or the slot
    group's ``SlotTable``; ``logit_rows`` int64 ``[wanted]`` are the tokens whose logits are wanted."""

    token_ids: Tensor
    segments: Segments
    groups: tuple[Pages | SlotTable, ...]
    logit_rows: Tensor
