"""Who owns what in the arena. Reservations take everything at once, or change nothing."""

from collections import Counter
from collections.abc import Iterable, Mapping

import torch

from plait_engine.state.addresses import addresses
from plait_engine.state.arena import Arena
from plait_engine.state.poison import Poison as Poison
from plait_engine.state.pools import SlabPool, StateBug, UnitPool, choose_slab_bytes
from plait_engine.state.spec import Granule, GroupId, StateGroup

Units = dict[GroupId, list[Granule]]
Demand = Mapping[GroupId, int]
"""Units wanted of each group: pages, or slot rows (``units_per_slot`` for one slot)."""


_FILL = {Poison.NAN: 0xFF, Poison.LARGE: 0x7B}


class Ledger:
    """The pools of all groups over one arena, and one reserved unit set that padding rows own."""

    def __init__(self, arena: Arena, groups: tuple[StateGroup, ...], poison: Poison = Poison.OFF) -> None:
        self.arena = arena
        self.groups = groups
        self.poison = poison
        self.slabs = SlabPool(arena.n_bytes, choose_slab_bytes(groups))
        self.pools = {group.id: UnitPool(group, self.slabs) for group in groups}
        if poison is not Poison.OFF:
            arena.bytes.fill_(_FILL[poison])
        reserved = self.take({group.id: 1 if group.paged else group.units_per_slot for group in groups})
        if reserved is None:
            raise ValueError(f"an arena of {arena.n_bytes} bytes does not even hold the reserved page and slot")
        self.reserved = reserved
        """Pages and slots that padding rows read and write; no sequence ever owns them."""

    def slabs_for(self, demand: Demand) -> int:
        return sum(self.pools[group].slabs_for(units) for group, units in demand.items())

    def can_take(self, demand: Demand) -> bool:
        return self.slabs_for(demand) <= self.slabs.free

    def take(self, demand: Demand, *, fresh: bool = True) -> Units | None:
        """All of ``demand``, or None and nothing changed. Slot rows are zeroed here: fresh means zero.

        Not ``fresh`` is for whoever writes them whole before anybody reads them.
        """
        if not self.can_take(demand):
            return None
        units = {group: self.pools[group].take(n) for group, n in demand.items()}
        for group, taken in units.items():
            if fresh and not self.groups[group].paged:
                self._fill(group, taken, 0)
        return units

    def give_back(self, group: GroupId, units: Iterable[Granule]) -> None:
        """One reference less on each unit; what nobody refers to any more is free."""
        self.spoil(group, self.pools[group].give_back(units))

    def spoil(self, group: GroupId, units: list[Granule]) -> None:
        """In poison mode, make what lies in units that are free now unusable."""
        if self.poison is not Poison.OFF:
            self._fill(group, units, _FILL[self.poison])

    def share(self, group: GroupId, units: Iterable[Granule]) -> None:
        """One more reference on each unit, which somebody holds already."""
        self.pools[group].share(units)

    def holds(self, group: GroupId, units: Iterable[Granule]) -> bool:
        """Whether somebody holds every one of the units: none of them is free."""
        taken = self.pools[group].taken
        return all(unit in taken for unit in units)

    def births(self, group: GroupId, units: Iterable[Granule]) -> list[int | None]:
        """Which taking of each unit it is that holds now; None where it is free."""
        return list(map(self.pools[group].births.get, units))

    def give_back_own(self, group: GroupId, units: list[Granule], births: list[int | None]) -> None:
        """Like ``give_back``, but what was freed since ``births`` were read is not ours any more, and is left alone."""
        now = self.births(group, units)
        if now != births:
            units = [unit for unit, own, birth in zip(units, now, births, strict=False) if own == birth is not None]
        self.give_back(group, units)

    def references(self, group: GroupId, unit: Granule) -> int:
        return self.pools[group].taken.get(unit, 0)

    def fits_alone(self, demand: Demand) -> bool:
        """Whether ``demand`` could be met if nothing else ran."""
        empty = self.slabs.total - sum(-(-len(self.reserved[g]) // self.pools[g].per_slab) for g in self.reserved)
        needed = 0
        for group, units in demand.items():
            per_slab = self.pools[group].per_slab
            spare = -len(self.reserved[group]) % per_slab
            needed += -(-max(0, units - spare) // per_slab)
        return needed <= empty

    def check(self, owned: Iterable[Units] = ()) -> None:
        """The books: per slab taken + free == units, slabs add up, ``owned`` are exactly the references there are."""
        in_pools = sum(pool.slab_count for pool in self.pools.values())
        if in_pools + self.slabs.free != self.slabs.total:
            raise StateBug(f"{in_pools} slabs in use + {self.slabs.free} free are not {self.slabs.total}")
        holders = [self.reserved, *owned]
        for group, pool in self.pools.items():
            pool.check()
            held = Counter(unit for units in holders for unit in units.get(group, []))
            if held != pool.taken:
                known = sum(pool.taken.values())
                raise StateBug(f"{pool.group.spec.kind}: {held.total()} references are held, but {known} taken")

    def _fill(self, group: GroupId, units: list[Granule], value: int) -> None:
        if not units:
            return
        view = self.arena.units(self.groups[group].unit_bytes, torch.int64)
        view.index_fill_(0, addresses(units, view.device), int.from_bytes(bytes([value]) * view.itemsize, signed=True))
