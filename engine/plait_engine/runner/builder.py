"""Step plan to step batch: all index arithmetic of a step, in numpy, before anything touches the device."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from plait_engine.runner.batch import SlotTable, StepBatch
from plait_engine.runner.rows import RowTables
from plait_engine.runner.shape import CHUNKS, Shape, up
from plait_engine.runner.upload import Upload
from plait_engine.scheduler.step_plan import Row, StepPlan
from plait_engine.state.checkpoint import Checkpoint
from plait_engine.state.spec import StateGroup
from plait_kernels.segments import Chunk, Room, Segments
from plait_kernels.storage import Pages

Int64 = NDArray[np.int64]


@dataclass(frozen=True)
class Pending:
    """Tokens that an uncommitted step samples: int64 ``[pending]`` places in the flat batch, and rows of the tables."""

    places: Tensor
    rows: Tensor


@dataclass(frozen=True)
class BuiltBatch:
    """A batch, and which of its rows' tokens the host does not know yet.

    ``sampled`` are the plan's rows that sample, in the order of ``batch.logit_rows``; ``sampled_rows`` int64 are their
    rows of the tables.
    """

    batch: StepBatch
    pending: Pending | None
    sampled: tuple[Row, ...]
    sampled_rows: Tensor


@dataclass(frozen=True)
class _Place:
    """Tokens ``[start, start + count)`` of a row's sequence, or so many of padding, which begins at 0."""

    count: int
    start: int = 0
    row: Row | None = None

    @classmethod
    def of(cls, row: Row) -> "_Place":
        return cls(row.count, row.start, row)

    @property
    def end(self) -> int:
        return self.start + self.count


class BatchBuilder:
    """Turns plans into batches behind ``upload``; decode rows are padded to a multiple of ``padding``."""

    def __init__(self, tables: RowTables, upload: Upload, padding: int) -> None:
        self.tables = tables
        self.upload = upload
        self.padding = padding

    def build(self, plan: StepPlan, shape: Shape | None = None) -> BuiltBatch:
        """With padding up to ``shape``, if there is one."""
        rows = plan.rows
        singles = [_Place.of(row) for row in rows[: plan.decodes]]
        pieces = [_Place.of(row) for row in rows[plan.decodes :]]
        wanted = up(plan.decodes, self.padding) if shape is None else shape.decodes
        singles += [_Place(1)] * (wanted - plan.decodes)
        if shape is None or not shape.pieces:
            return self._built(singles, pieces)
        return self._built(singles, self._filled(pieces, shape), Room(CHUNKS, self.tables.longest))

    def only_padding(self, shape: Shape) -> StepBatch:
        """A step of ``shape`` that is nobody's."""
        return self.build(StepPlan(()), shape).batch

    @staticmethod
    def _filled(pieces: list["_Place"], shape: Shape) -> list["_Place"]:
        """A piece of padding takes the tokens that are left, and sequences without tokens the places."""
        left = shape.tokens - sum(place.count for place in pieces)
        return [*pieces, _Place(left), *[_Place(0)] * (shape.pieces - len(pieces) - 1)]

    def _built(self, singles: list["_Place"], pieces: list["_Place"], room: Room | None = None) -> BuiltBatch:
        layout, decodes = [*singles, *pieces], len(singles)
        starts = np.array([place.start for place in layout], np.int64)
        counts = np.array([place.count for place in layout], np.int64)
        table_rows = np.array(
            [place.row.sequence.row if place.row else self.tables.padding_row for place in layout], np.int64
        )
        borders = np.zeros(len(layout) + 1, np.int64)
        np.cumsum(counts, out=borders[1:])
        ends = starts + counts
        sequence_of = np.repeat(np.arange(len(layout)), counts)
        positions = np.arange(borders[-1]) - borders[sequence_of] + starts[sequence_of]
        chunks, emits = self._chunks(layout, borders, decodes)
        segments = Segments(
            decodes=decodes,
            starts=self._put(borders.astype(np.int32)),
            lengths=self._put(ends.astype(np.int32)),
            positions=self._put(positions),
            sequence_of=self._put(sequence_of),
            starts_host=tuple(borders.tolist()),
            lengths_host=tuple(ends.tolist()),
            chunks=chunks,
            room=room,
        )
        groups = tuple(
            self._pages(group, table_rows, sequence_of, positions, int(ends.max()))
            if group.paged
            else self._slots(group, table_rows, emits, room)
            for group in self.tables.groups
        )
        token_ids, pending = self._tokens(layout, borders)
        rows_of = ((int(end) - 1, place.row) for end, place in zip(borders[1:], layout, strict=True))
        sampled = [(end, row) for end, row in rows_of if row is not None and row.samples]
        logit_rows = self._put(np.array([place for place, _ in sampled], np.int64))
        rows = self._put(np.array([row.sequence.row for _, row in sampled], np.int64))
        batch = StepBatch(token_ids, segments, groups, logit_rows)
        self.upload.send()
        return BuiltBatch(batch, pending, tuple(row for _, row in sampled), rows)

    def _chunks(
        self, layout: list["_Place"], borders: Int64, first: int
    ) -> tuple[tuple[Chunk, ...], list[Checkpoint | None]]:
        """Rows of the chunk table, cut where a checkpoint is left, and the checkpoint behind each."""
        chunks: list[Chunk] = []
        emits: list[Checkpoint | None] = []
        for i in range(first, len(layout)):
            place = layout[i]
            base = int(borders[i]) - place.start
            begin = place.start
            for checkpoint in place.row.emits if place.row else ():
                chunks.append(Chunk(base + begin, base + checkpoint.position, i, emit=True))
                emits.append(checkpoint)
                begin = checkpoint.position
            if begin < place.end:
                chunks.append(Chunk(base + begin, base + place.end, i))
                emits.append(None)
        return tuple(chunks), emits

    def _slots(self, group: StateGroup, rows: Int64, emits: list[Checkpoint | None], room: Room | None) -> SlotTable:
        table = self._put(self.tables.slots[group.id][:, rows])
        if room is None and not any(emits):
            return SlotTable(table)
        nowhere = [-1] * group.units_per_slot
        targets = [nowhere if c is None else c.slots[group.id] for c in emits]
        targets += [nowhere] * (0 if room is None else room.chunks - len(emits))
        return SlotTable(table, self._put(np.array(targets, np.int32).T))

    def _pages(self, group: StateGroup, rows: Int64, sequence_of: Int64, positions: Int64, longest: int) -> Pages:
        size = group.page_size
        table = self.tables.pages[group.id][rows, : -(-longest // size)]
        writes = table[sequence_of, positions // size].astype(np.int64)
        return Pages(self._put(table), self._put(writes), self._put(positions % size), size)

    def _tokens(self, layout: list["_Place"], borders: Int64) -> tuple[Tensor, Pending | None]:
        ids: list[int] = []
        places: list[int] = []
        rows: list[int] = []
        for i, (row, count) in enumerate((place.row, place.count) for place in layout):
            known = [0] * count if row is None else row.sequence.tokens[row.start : row.end]
            if row is not None and len(known) < row.count:
                places.append(int(borders[i + 1]) - 1)
                rows.append(row.sequence.row)
                known = [*known, 0]
            ids.extend(known)
        pending = Pending(*(self._put(np.array(part, np.int64)) for part in (places, rows))) if places else None
        return self._put(np.array(ids, np.int64)), pending

    def _put(self, array: NDArray[np.int32] | Int64) -> Tensor:
        return self.upload.put(array)
