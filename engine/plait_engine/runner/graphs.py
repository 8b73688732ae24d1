"""Steps that are recorded once for a shape and replayed: no Python between their kernels.

Recordings read one set of tensors, the desk, into which replaying copies a batch. Their results are valid until the
next replay. Recording runs the step on padding rows only, so that nobody's state moves. What a recording was made with
is compared before each replay (``layout.py``).
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, SupportsIndex

import torch
from torch import Tensor

from plait_engine.models.base import Model
from plait_engine.runner.batch import SlotTable, StepBatch
from plait_engine.runner.layout import Layout, shape_in
from plait_engine.runner.rows import RowTables
from plait_engine.runner.shape import CHUNKS, PIECES, Shape, ladder, shape_of, shapes_with_pieces, up
from plait_engine.scheduler.step_plan import StepPlan
from plait_kernels.recording import NotReplayableError, Recording
from plait_kernels.segments import Segments
from plait_kernels.select import Kernels
from plait_kernels.storage import Pages
from plait_kernels.tables import Key, keys, lay, refill

log = logging.getLogger("plait.graphs")
Padding = Callable[[Shape], StepBatch]
"""A step of the given shape that is padding and nothing else."""
PIECE_TOKENS = 2048
"""Steps whose pieces of prompts have up to so many tokens are recorded too. Larger ones take the device longer than
the host."""


class _NotOnHost(tuple[int, ...]):
    """Lengths differ from replay to replay, so a recorded step must not look at them on the host."""

    def __getitem__(self, key: SupportsIndex | slice) -> Any:
        raise NotReplayableError(f"the step looks at a length (row {key}) on the host")

    def __iter__(self) -> Any:
        raise NotReplayableError("the step looks at lengths on the host")


class Desk:
    """Where recordings find their inputs: room for the largest shape; others have the first rows and tokens of it.

    Page tables are as wide as the longest sequence needs. What is behind a sequence's pages is never looked at, so it
    may be left from earlier steps.
    """

    def __init__(self, padding: StepBatch, tables: RowTables, rows: int, tokens: int) -> None:
        def ids(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=padding.token_ids.device)

        int32 = torch.int32
        self._ids, self._positions, self._sequence_of = ids(tokens), ids(tokens), ids(tokens)
        self._starts, self._lengths = ids(rows + 1, dtype=int32), ids(rows, dtype=int32)
        self._logit_rows = padding.logit_rows
        self._groups: list[Pages | SlotTable] = []
        for group, given in zip(tables.groups, padding.groups, strict=True):
            if isinstance(given, Pages):
                table = ids(rows, tables.width(group), dtype=int32)
                self._groups.append(Pages(table, ids(tokens), ids(tokens), given.page_size))
            else:
                layers = len(given.rows)
                self._groups.append(SlotTable(ids(layers, rows, dtype=int32), ids(layers, CHUNKS, dtype=int32)))
        tensors = [self._ids, self._positions, self._sequence_of, self._starts, self._lengths]
        self.addresses = tuple(tensor.data_ptr() for tensor in (*tensors, *_inputs_of(self._groups)))

    def batch(self, shape: Shape, like: StepBatch) -> StepBatch:
        """What a step of ``shape`` reads. ``like``, of that shape, says what is the same in all of them."""
        rows, tokens, old = shape.rows, shape.all_tokens, like.segments
        segments = Segments(
            decodes=shape.decodes,
            starts=self._starts[: rows + 1],
            lengths=self._lengths[:rows],
            positions=self._positions[:tokens],
            sequence_of=self._sequence_of[:tokens],
            starts_host=old.starts_host,
            lengths_host=old.lengths_host if shape.pieces else _NotOnHost(old.lengths_host),
            chunks=old.chunks,
            room=old.room,
        )
        groups = tuple(_first(group, rows, tokens, bool(shape.pieces)) for group in self._groups)
        return StepBatch(self._ids[:tokens], segments, groups, self._logit_rows[:0])


class StepGraphs:
    """Recordings by shape, made when first wanted. Where one cannot be made, steps run as they are."""

    def __init__(self, model: Model, kernels: Kernels, tables: RowTables, multiple: int) -> None:
        """Decodes come in multiples of ``multiple``."""
        self.model = model
        self.kernels = kernels
        self.piece_tokens = min(PIECE_TOKENS, tables.longest) if kernels.graphs else 0
        self._tables = tables
        self._multiple = multiple
        self._most = up(ladder(tables.padding_row), multiple)
        self._desk: Desk | None = None
        self._recorded: dict[Shape, _Recorded | None] = {}
        self._ran: dict[int, tuple[Key, ...]] = {}
        """By tokens of pieces: steps that have run, so that their kernels are loaded; and the tables that they asked
        for."""

    def forget(self) -> None:
        """The kernels are others now."""
        self._recorded.clear()
        self._ran.clear()

    def shape(self, plan: StepPlan) -> Shape | None:
        """What ``plan`` is to be padded to, so that it can be recorded; None where it runs as it is."""
        return shape_of(plan, self._multiple, self.piece_tokens, self._most)

    def shapes_with_pieces(self) -> list[Shape]:
        """All that steps with pieces of prompts are padded to."""
        return shapes_with_pieces(self._multiple, self.piece_tokens, self._most) if self.piece_tokens else []

    def prepare(self, shape: Shape, padding: Padding) -> bool:
        """Record a step of ``shape`` now, if it was not yet; whether that can be done."""
        if shape not in self._recorded:
            self._recorded[shape] = self._record(shape, padding(shape))
        return self._recorded[shape] is not None

    def hidden(self, batch: StepBatch, shape: Shape, padding: Padding) -> Tensor | None:
        """Hidden states of a batch that was padded to ``shape``, ``[tokens, hidden]``; None where it must run as it
        is: because it cannot be recorded, or because what its recording was made with is not there any more."""
        if not self.prepare(shape, padding):
            return None
        recorded = self._recorded[shape]
        assert recorded is not None
        if recorded.layout != self._layout(shape_in(batch.segments)):
            log.warning("recorded steps were made with other kernels, memory or shapes, and are dropped")
            self.forget()
            return None
        recorded.lay(batch)
        recorded.recording.run()
        return recorded.recording.result

    @torch.inference_mode()
    def _record(self, shape: Shape, padding: StepBatch) -> "_Recorded | None":
        if self._desk is None:
            rows, tokens = self._most + PIECES, self._most + max(self.piece_tokens, shape.tokens)
            self._desk = Desk(padding, self._tables, rows, tokens)
        batch = self._desk.batch(shape, padding)
        _lay(batch, padding)
        lay(batch.segments, self._ran.get(shape.tokens, ()))
        try:
            recording = self.kernels.record(lambda: self.model(batch), known=shape.tokens in self._ran)
        except NotReplayableError:
            return None
        self._ran[shape.tokens] = keys(batch.segments)
        return _Recorded(self._layout(shape), batch, recording)

    def _layout(self, shape: Shape) -> Layout:
        assert self._desk is not None
        return Layout(shape, self._desk.addresses, self.model.bound, self.kernels, self.kernels.generation)


@dataclass(frozen=True)
class _Recorded:
    layout: Layout
    batch: StepBatch
    recording: Recording[Tensor]

    def lay(self, batch: StepBatch) -> None:
        _lay(self.batch, batch)
        if batch.segments.room is not None:
            refill(self.batch.segments, batch.segments)


def _lay(desk: StepBatch, batch: StepBatch) -> None:
    """Copy a step's inputs to where its recording reads them. A page table may have fewer columns; all else must have
    the sizes that were recorded, or is refused with a ``ValueError``."""
    narrow = {id(group.table) for group in desk.groups if isinstance(group, Pages)}
    together: dict[torch.dtype, list[tuple[Tensor, Tensor]]] = {}
    for ours, theirs in zip(_inputs(desk), _inputs(batch), strict=True):
        place = ours[:, : theirs.shape[1]] if id(ours) in narrow else ours
        if place.shape != theirs.shape:
            raise ValueError(f"a recorded step has {tuple(ours.shape)} where the step has {tuple(theirs.shape)}")
        if place.dim() == 1:
            together.setdefault(place.dtype, []).append((place, theirs))
        else:
            place.copy_(theirs)
    for pairs in together.values():  # one kernel for all of them: each by itself costs as much
        places, values = zip(*pairs, strict=True)
        torch._foreach_copy_(places, values)


def _first(group: Pages | SlotTable, rows: int, tokens: int, emitting: bool) -> Pages | SlotTable:
    if isinstance(group, SlotTable):
        return SlotTable(group.rows[:, :rows], group.emits if emitting else None)
    return Pages(group.table[:rows], group.write_pages[:tokens], group.write_offsets[:tokens], group.page_size)


def _inputs(batch: StepBatch) -> list[Tensor]:
    """What differs from step to step."""
    segments = batch.segments
    tensors = [batch.token_ids, segments.starts, segments.lengths, segments.positions, segments.sequence_of]
    return tensors + _inputs_of(batch.groups)


def _inputs_of(groups: Iterable[Pages | SlotTable]) -> list[Tensor]:
    tensors: list[Tensor] = []
    for group in groups:
        if isinstance(group, Pages):
            tensors += [group.table, group.write_pages, group.write_offsets]
        else:
            tensors += [group.rows] if group.emits is None else [group.rows, group.emits]
    return tensors
