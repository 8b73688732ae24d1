"""Decode steps that are recorded once for a number of rows and replayed: no Python between their kernels.

A recording works on tensors of its own. Replaying copies a batch into them, runs, and leaves the logits in a tensor of
its own, valid until the next replay. Recording runs the step once, on padding rows only, so that nobody's state moves.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, SupportsIndex

import torch
from torch import Tensor

from plait_engine.models.base import Model
from plait_engine.runner.batch import SlotTable, StepBatch
from plait_kernels.cpu.tape import NotReplayableError, Recording
from plait_kernels.segments import Segments
from plait_kernels.select import Kernels
from plait_kernels.storage import Pages


def ladder(rows: int) -> int:
    """The number of rows that a decode of ``rows`` is padded to: few enough sizes, and little work for nothing."""
    step = 1 if rows <= 8 else 4 if rows <= 32 else 8
    return -(-rows // step) * step


class _NotOnHost(tuple[int, ...]):
    """Lengths differ from replay to replay, so a recorded step must not look at them on the host."""

    def __getitem__(self, key: SupportsIndex | slice) -> Any:
        raise NotReplayableError(f"the step looks at a length (row {key}) on the host")

    def __iter__(self) -> Any:
        raise NotReplayableError("the step looks at lengths on the host")


@dataclass(frozen=True)
class _Graph:
    batch: StepBatch
    recording: Recording[Tensor]

    def replay(self, fresh: StepBatch) -> Tensor:
        for own, new in zip(_tensors(self.batch), _tensors(fresh), strict=True):
            own.copy_(new)
        self.recording.run()
        return self.recording.result


class DecodeGraphs:
    """Recordings by number of rows, made when first wanted. Where one cannot be made, steps run as they are."""

    def __init__(self, model: Model, kernels: Kernels, widths: tuple[int, ...]) -> None:
        self.model = model
        self.kernels = kernels
        self._widths = widths
        """Columns of each group's page table in a recording: as many as the longest sequence can have; 0: slots."""
        self._graphs: dict[int, _Graph | None] = {}

    def forget(self) -> None:
        """The kernels are others now."""
        self._graphs.clear()

    def logits(self, batch: StepBatch, padding: Callable[[int], StepBatch]) -> Tensor | None:
        """Logits of a decode batch; None where it must run as it is. ``padding(n)`` makes n padding rows."""
        rows = batch.segments.sequences
        if rows not in self._graphs:
            self._graphs[rows] = self._record(padding(rows))
        graph = self._graphs[rows]
        return None if graph is None else graph.replay(self._widened(batch))

    def _record(self, padding: StepBatch) -> _Graph | None:
        own = self._own(padding)
        try:
            recording = self.kernels.record(lambda: self.model.logits(self.model(own)[own.logit_rows]))
        except NotReplayableError:
            return None
        return _Graph(own, recording)

    def _own(self, padding: StepBatch) -> StepBatch:
        wide = self._widened(padding)
        old = wide.segments
        segments = Segments(
            decodes=old.decodes,
            starts=old.starts,
            lengths=old.lengths.clone(),
            positions=old.positions.clone(),
            sequence_of=old.sequence_of,
            starts_host=old.starts_host,
            lengths_host=_NotOnHost(old.lengths_host),
            chunks=(),
        )
        return StepBatch(wide.token_ids.clone(), segments, tuple(map(_cloned, wide.groups)), wide.logit_rows)

    def _widened(self, batch: StepBatch) -> StepBatch:
        """The batch with page tables as wide as in recordings. What is behind a sequence's pages is never looked at."""
        groups = tuple(
            _wide(group, width) if isinstance(group, Pages) else group
            for group, width in zip(batch.groups, self._widths, strict=True)
        )
        return StepBatch(batch.token_ids, batch.segments, groups, batch.logit_rows)


def _wide(pages: Pages, width: int) -> Pages:
    table = torch.nn.functional.pad(pages.table, (0, width - pages.table.shape[1]))
    return Pages(table, pages.write_pages, pages.write_offsets, pages.page_size)


def _cloned(group: Pages | SlotTable) -> Pages | SlotTable:
    if isinstance(group, Pages):
        return Pages(group.table.clone(), group.write_pages.clone(), group.write_offsets.clone(), group.page_size)
    return SlotTable(group.rows.clone())


def _tensors(batch: StepBatch) -> list[Tensor]:
    """What differs from step to step."""
    tensors = [batch.token_ids, batch.segments.lengths, batch.segments.positions]
    for group in batch.groups:
        own = (group.table, group.write_pages, group.write_offsets) if isinstance(group, Pages) else (group.rows,)
        tensors.extend(own)
    return tensors
