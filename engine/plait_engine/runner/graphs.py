"""Decode steps that are recorded once for a number of rows and replayed: no Python between their kernels.

Recordings read one set of tensors, the desk, into which replaying copies a batch. Their results are valid until the
next replay. Recording runs the step on padding rows only, so that nobody's state moves.
"""

from collections.abc import Callable
from typing import Any, SupportsIndex

import torch
from torch import Tensor

from plait_engine.models.base import Model
from plait_engine.runner.batch import SlotTable, StepBatch
from plait_engine.runner.rows import RowTables
from plait_kernels.recording import NotReplayableError, Recording
from plait_kernels.segments import Segments
from plait_kernels.select import Kernels
from plait_kernels.storage import Pages

Padding = Callable[[int], StepBatch]
"""A decode step of so many padding rows and nothing else."""


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


class Desk:
    """Where recordings find their inputs: room for the most rows; a recording of fewer has the first ones.

    Page tables are as wide as the longest sequence needs. What is behind a sequence's pages is never looked at, so it
    may be left from earlier steps.
    """

    def __init__(self, padding: StepBatch, widths: tuple[int, ...]) -> None:
        groups = tuple(
            _wide(group, width) if isinstance(group, Pages) else SlotTable(group.rows.clone())
            for group, width in zip(padding.groups, widths, strict=True)
        )
        self._all = StepBatch(padding.token_ids.clone(), padding.segments, groups, padding.logit_rows)

    def batch(self, rows: int) -> StepBatch:
        """The first ``rows`` rows as a decode step whose lengths only the device knows."""
        old = self._all.segments
        segments = Segments(
            decodes=rows,
            starts=old.starts[: rows + 1],
            lengths=old.lengths[:rows],
            positions=old.positions[:rows],
            sequence_of=old.sequence_of[:rows],
            starts_host=old.starts_host[: rows + 1],
            lengths_host=_NotOnHost(old.lengths_host[:rows]),
            chunks=(),
        )
        groups = tuple(_first(group, rows) for group in self._all.groups)
        return StepBatch(self._all.token_ids[:rows], segments, groups, self._all.logit_rows[:rows])

    def lay(self, batch: StepBatch) -> None:
        """Copy a decode step's inputs to the first rows."""
        rows = batch.segments.sequences
        for ours, theirs in zip(_inputs(self._all), _inputs(batch), strict=True):
            if ours.dim() == 1:
                ours[:rows].copy_(theirs)
            else:  # a page table, with fewer columns, or a slot table, with fewer rows
                ours[: theirs.shape[0], : theirs.shape[1]].copy_(theirs)


class DecodeGraphs:
    """Recordings by number of rows, made when first wanted. Where one cannot be made, steps run as they are."""

    def __init__(self, model: Model, kernels: Kernels, tables: RowTables, most: int) -> None:
        """``most``: rows that a step of decodes has at most, padding included."""
        self.model = model
        self.kernels = kernels
        self._widths = tuple(tables.width(group) for group in tables.groups)
        self._most = most
        self._desk: Desk | None = None
        self._graphs: dict[int, Recording[Tensor] | None] = {}

    def forget(self) -> None:
        """The kernels are others now."""
        self._graphs.clear()

    def prepare(self, rows: int, padding: Padding) -> bool:
        """Record a decode step of ``rows`` rows now; whether that can be done."""
        if rows not in self._graphs:
            self._graphs[rows] = self._record(rows, padding)
        return self._graphs[rows] is not None

    def hidden(self, batch: StepBatch, padding: Padding) -> Tensor | None:
        """Hidden states of a decode batch, ``[rows, hidden]``; None where it must run as it is."""
        rows = batch.segments.sequences
        if not self.prepare(rows, padding):
            return None
        recording = self._graphs[rows]
        assert recording is not None
        assert self._desk is not None
        self._desk.lay(batch)
        recording.run()
        return recording.result

    @torch.inference_mode()
    def _record(self, rows: int, padding: Padding) -> Recording[Tensor] | None:
        if self._desk is None:
            self._desk = Desk(padding(self._most), self._widths)
        self._desk.lay(padding(rows))
        batch = self._desk.batch(rows)
        try:
            return self.kernels.record(lambda: self.model(batch))
        except NotReplayableError:
            return None


def _wide(pages: Pages, width: int) -> Pages:
    table = pages.table.new_zeros(len(pages.table), width)
    table[:, : pages.table.shape[1]] = pages.table
    return Pages(table, pages.write_pages.clone(), pages.write_offsets.clone(), pages.page_size)


def _first(group: Pages | SlotTable, rows: int) -> Pages | SlotTable:
    if isinstance(group, SlotTable):
        return SlotTable(group.rows[:, :rows])
    return Pages(group.table[:rows], group.write_pages[:rows], group.write_offsets[:rows], group.page_size)


def _inputs(batch: StepBatch) -> list[Tensor]:
    """What differs from step to step."""
    tensors = [batch.token_ids, batch.segments.lengths, batch.segments.positions]
    for group in batch.groups:
        own = (group.table, group.write_pages, group.write_offsets) if isinstance(group, Pages) else (group.rows,)
        tensors.extend(own)
    return tensors
