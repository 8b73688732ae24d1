"""Tables of the running sequences, by row: page tables and slot rows, kept in step with what sequences own."""

import numpy as np
from numpy.typing import NDArray

from plait_engine.sequence import Sequence
from plait_engine.state.ledger import Units
from plait_engine.state.spec import GroupId, StateGroup

Int32 = NDArray[np.int32]


class RowTables:
    """Host side of the tables. The last row is the padding row: it owns the reserved page and slot, always."""

    def __init__(self, groups: tuple[StateGroup, ...], reserved: Units, max_seqs: int, max_model_len: int) -> None:
        self.padding_row = max_seqs
        self._longest = max_model_len
        self.groups = groups
        self.pages: dict[GroupId, Int32] = {}
        self.slots: dict[GroupId, Int32] = {}
        self._reserved_page = {g.id: int(reserved[g.id][0]) for g in groups if g.paged}
        self._written: dict[GroupId, list[tuple[int, int]]] = {}
        for group in groups:
            if group.paged:
                width = -(-max_model_len // group.page_size) + 1
                self.pages[group.id] = np.full((max_seqs + 1, width), reserved[group.id][0], np.int32)
                self._written[group.id] = [(0, 0)] * (max_seqs + 1)
            else:
                rows = np.array(reserved[group.id], np.int32)[:, None]
                self.slots[group.id] = np.repeat(rows, max_seqs + 1, axis=1)

    @property
    def longest(self) -> int:
        """Tokens that a sequence can have at most."""
        return self._longest

    def width(self, group: StateGroup) -> int:
        """Columns of a group's page table: pages of the longest sequence. 0 for slots."""
        return self.pages[group.id].shape[1] if group.paged else 0

    def refresh(self, sequence: Sequence) -> None:
        """Bring the sequence's row up to date with what it owns. Cheap when nothing changed."""
        row = sequence.row
        for group, run in sequence.state.runs.items():
            first, end = run.first, run.first + len(run.pages)
            old_first, old_end = self._written[group][row]
            if (first, end) == (old_first, old_end):
                continue
            table = self.pages[group][row]
            table[old_first:first] = self._reserved_page[group]
            table[max(old_end, first) : end] = run.pages[max(old_end, first) - first :]
            self._written[group][row] = (first, end)

    def enter(self, sequence: Sequence) -> None:
        """A sequence takes its row: whatever an earlier owner left there is overwritten."""
        row = sequence.row
        for group, written in self._written.items():
            self.pages[group][row, : written[row][1]] = self._reserved_page[group]
            written[row] = (0, 0)
        for group, table in self.slots.items():
            table[:, row] = sequence.state.slots[group]
