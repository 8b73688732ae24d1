"""Copies and checksums of whole units, on the device that holds the arena."""

from dataclasses import dataclass

import torch
from torch import Tensor

from plait_engine.state.addresses import addresses
from plait_engine.state.arena import Arena
from plait_engine.state.spec import Granule, GroupId, StateGroup
from plait_kernels.checksum_units import ChecksumUnits
from plait_kernels.checksum_units.reference import checksum_units
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

    def __init__(
        self,
        arena: Arena,
        groups: tuple[StateGroup, ...],
        copy_units: CopyUnits = copy_units,
        checksum_units: ChecksumUnits = checksum_units,
    ) -> None:
        self._groups = groups
        self._copy_units = copy_units
        self._checksum_units = checksum_units
        self._unit_bytes = {group.id: group.unit_bytes for group in groups}
        self._arena = arena

    def copy(self, copies: list[UnitCopy]) -> None:
        """All at once: no target may be another copy's source."""
        for group in self._groups:
            own = [copy for copy in copies if copy.group == group.id]
            if own:
                sources, targets = self._index([c.source for c in own]), self._index([c.target for c in own])
                self._copy_units(self._arena.bytes, sources, targets, group.unit_bytes)

    def checksum(self, units: dict[GroupId, list[Granule]]) -> Tensor:
        """An int64 for each group of ``units``: see ``plait_kernels.checksum_units``."""
        sums = (
            self._checksum_units(self._arena.bytes, self._index(own), self._unit_bytes[id]) for id, own in units.items()
        )
        return torch.stack(list(sums))

    def _index(self, units: list[Granule]) -> Tensor:
        return addresses(units, self._arena.bytes.device, torch.int32)
