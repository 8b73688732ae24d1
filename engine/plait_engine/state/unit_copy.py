"""Copies and checksums of whole units, on the device that holds the arena."""

from dataclasses import dataclass

import torch
from torch import Tensor

from plait_engine.state.addresses import addresses
from plait_engine.state.arena import Arena
from plait_engine.state.spec import Granule, GroupId, StateGroup
from plait_kernels.copy_units import CopyUnits
from plait_kernels.copy_units.reference import copy_units


@dataclass(frozen=True)
class UnitCopy:
    """Bring what lies in one unit to another of the same group."""

    group: GroupId
    source: Granule
    target: Granule


class UnitCopier:
    """Moves units within one arena. Launches only; whoever needs the result on the host waits for it himself."""

    def __init__(self, arena: Arena, groups: tuple[StateGroup, ...], copy_units: CopyUnits = copy_units) -> None:
        self._groups = groups
        self._copy_units = copy_units
        self._unit_bytes = {group.id: group.unit_bytes for group in groups}
        self._arena = arena
        self._weights: dict[int, Tensor] = {}
        """Of the words of one row, by their number."""

    def copy(self, copies: list[UnitCopy]) -> None:
        """All at once: no target may be another copy's source."""
        for group in self._groups:
            own = [copy for copy in copies if copy.group == group.id]
            if own:
                sources, targets = self._index([c.source for c in own]), self._index([c.target for c in own])
                self._copy_units(self._arena.bytes, sources.int(), targets.int(), group.unit_bytes)

    def checksum(self, units: dict[GroupId, list[Granule]]) -> Tensor:
        """An int64 for each group of ``units`` over all bytes, in order: any flipped byte and any two swapped words
        change it.
        """
        sums = []
        for id, own in units.items():
            view = self._arena.units(self._unit_bytes[id], torch.int64)
            if view.device.type == "cpu":
                sums.append(self._row_by_row(view, own))
                continue
            words = view[self._index(own)]
            weights = torch.arange(1, 2 * words.numel(), 2, device=words.device).view_as(words)
            sums.append((words * weights).sum())
        return torch.stack(sums)

    def _row_by_row(self, view: Tensor, units: list[Granule]) -> Tensor:
        """The same number, from rows where they lie: word ``i`` of row ``j`` weighs ``2 (j width + i) + 1``."""
        width = view.shape[1]
        weights = self._weights.get(width)
        if weights is None:
            weights = self._weights[width] = torch.arange(1, 2 * width, 2)
        rows = (view[unit] for unit in units)
        parts = [torch.dot(row, weights) + 2 * j * width * row.sum() for j, row in enumerate(rows)]
        return torch.stack(parts).sum()

    def _index(self, units: list[Granule]) -> Tensor:
        return addresses(units, self._arena.bytes.device)
