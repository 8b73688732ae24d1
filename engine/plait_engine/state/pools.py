"""Slabs of the arena and the units (pages, slot rows) carved from them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from plait_engine.state.spec import GRANULE_BYTES, Granule, StateGroup

SLAB_TARGET_BYTES = 1 << 20
"""Slabs are about one layer's state. Larger ones are rarely free of survivors, smaller ones waste their tails."""
SLAB_MOST_BYTES = 8 << 20
LITTLE_WASTE = 0.05
"""Share of a slab that its last units may leave unused in any group."""


class StateBug(Exception):
    """The books do not add up. Never a client's fault; the engine must not go on with this state."""


def choose_slab_bytes(groups: Iterable[StateGroup]) -> int:
    """The multiple of the largest unit that wastes least, up to the target; or the next one that wastes little."""
    units = [group.unit_bytes for group in groups]
    largest = max(units)

    def wasted(slab: int) -> float:
        return max(slab % unit / slab for unit in units)

    near = [largest * n for n in range(1, max(1, SLAB_TARGET_BYTES // largest) + 1)]
    far = range(near[-1] + largest, SLAB_MOST_BYTES + 1, largest)
    best = min(near, key=lambda slab: (wasted(slab), -slab))
    if wasted(best) <= LITTLE_WASTE:
        return best
    return next((slab for slab in far if wasted(slab) <= LITTLE_WASTE), min([best, *far], key=wasted))


class SlabPool:
    """The arena's slabs that serve no group at the moment."""

    def __init__(self, arena_bytes: int, slab_bytes: int) -> None:
        self.slab_bytes = slab_bytes
        self.total = arena_bytes // slab_bytes
        self._free = list(range(self.total - 1, -1, -1))

    @property
    def free(self) -> int:
        return len(self._free)

    def take(self) -> int:
        return self._free.pop()

    def give_back(self, slab: int) -> None:
        self._free.append(slab)


@dataclass
class UnitPool:
    """Units of one group. Takes a slab when its own are full, gives it back when nothing lives there.

    Units come from the fullest slab first, so that others empty. ``_by_free[n]`` holds the slabs with n free units.
    """

    group: StateGroup
    slabs: SlabPool
    taken: dict[Granule, int] = field(default_factory=dict)
    """References on each unit that is not free."""
    births: dict[Granule, int] = field(default_factory=dict)
    """A number for each unit that is not free, another one each time that it is taken: who remembers it along with the
    address notices when the unit was freed, and taken by others, behind his back."""
    _born: int = 0
    _free: dict[int, list[Granule]] = field(default_factory=dict)
    _by_free: list[dict[int, None]] = field(init=False)

    def __post_init__(self) -> None:
        unit_bytes = self.group.unit_bytes
        self.per_slab = self.slabs.slab_bytes // unit_bytes
        self._step = unit_bytes // GRANULE_BYTES
        self._by_free = [{} for _ in range(self.per_slab + 1)]
        self.available = 0
        """Free units in the slabs that this pool has already."""

    def slabs_for(self, units: int) -> int:
        """How many more slabs ``take(units)`` needs."""
        return -(-max(0, units - self.available) // self.per_slab)

    def take(self, units: int) -> list[Granule]:
        """``units`` addresses. The caller has made sure that ``slabs_for(units)`` slabs are free."""
        got: list[Granule] = []
        while len(got) < units:
            slab = self._fullest() if self.available else self._open_slab()
            free = self._free[slab]
            del self._by_free[len(free)][slab]
            n = min(len(free), units - len(got))
            got.extend(free[-n:])
            del free[-n:]
            self._by_free[len(free)][slab] = None
            self.available -= n
        self.taken.update(dict.fromkeys(got, 1))
        self.births.update(zip(got, range(self._born, self._born + units), strict=True))
        self._born += units
        return got

    def share(self, units: Iterable[Granule]) -> None:
        """One more reference on each unit; each must have one already."""
        taken = self.taken
        for unit in units:
            if unit not in taken:
                raise StateBug(f"unit {unit} of {self.group.spec.kind} is shared but was not taken")
            taken[unit] += 1

    def give_back(self, units: Iterable[Granule]) -> list[Granule]:
        """One reference less on each unit. Returns those that are free now."""
        freed: list[Granule] = []
        for unit in units:
            references = self.taken.get(unit)
            if references is None:
                raise StateBug(f"unit {unit} of {self.group.spec.kind} is given back but was not taken")
            if references > 1:
                self.taken[unit] = references - 1
                continue
            del self.taken[unit], self.births[unit]
            freed.append(unit)
            slab = self.slab_of(unit)
            free = self._free[slab]
            del self._by_free[len(free)][slab]
            free.append(unit)
            self.available += 1
            if len(free) == self.per_slab:
                self._close_slab(slab)
            else:
                self._by_free[len(free)][slab] = None
        return freed

    def check(self) -> None:
        """Per slab, taken + free == units, and no unit twice."""
        free = {unit for units in self._free.values() for unit in units}
        n_free = sum(len(units) for units in self._free.values())
        if len(free) != n_free or free & self.taken.keys():
            raise StateBug(f"{self.group.spec.kind}: a unit is free twice, or free and taken")
        if n_free + len(self.taken) != len(self._free) * self.per_slab or n_free != self.available:
            raise StateBug(f"{self.group.spec.kind}: {n_free} free + {len(self.taken)} taken do not fill its slabs")

    @property
    def slab_count(self) -> int:
        return len(self._free)

    def slab_of(self, unit: Granule) -> int:
        return unit * GRANULE_BYTES // self.slabs.slab_bytes

    def free_in(self, slab: int) -> int:
        """Free units in one of this pool's slabs."""
        return len(self._free[slab])

    def taken_in(self, slab: int) -> Iterator[tuple[Granule, int]]:
        """Units of one of this pool's slabs that are not free, and the references on each."""
        return ((unit, self.taken[unit]) for unit in self._units_of(slab) if unit in self.taken)

    def emptiest(self) -> Iterator[int]:
        """This pool's slabs, those with most free units first."""
        for slabs in reversed(self._by_free):
            yield from tuple(slabs)

    def relocate(self, slabs: Iterable[int]) -> dict[Granule, Granule]:
        """A free unit in one of the other slabs for each unit that is taken in ``slabs``; they change places.

        The caller has made sure that there are enough, and copies the contents. References go with the unit; ``slabs``
        are given back.
        """
        leaving = list(slabs)
        for slab in leaving:
            del self._by_free[len(self._free[slab])][slab]
            self.available -= len(self._free[slab])
        sources = [u for slab in leaving for u in self._units_of(slab) if u in self.taken]
        if len(sources) > self.available:
            raise StateBug(f"{len(sources)} units of {self.group.spec.kind} have {self.available} places to move to")
        moves = dict(zip(sources, self.take(len(sources)), strict=True))
        for source, target in moves.items():
            self.taken[target] = self.taken.pop(source)
            self.births[target] = self.births.pop(source)
        for slab in leaving:
            del self._free[slab]
            self.slabs.give_back(slab)
        return moves

    def _fullest(self) -> int:
        return next(next(iter(slabs)) for slabs in self._by_free[1:] if slabs)

    def _open_slab(self) -> int:
        slab = self.slabs.take()
        self._free[slab] = list(reversed(list(self._units_of(slab))))
        self._by_free[self.per_slab][slab] = None
        self.available += self.per_slab
        return slab

    def _close_slab(self, slab: int) -> None:
        del self._free[slab]
        self.available -= self.per_slab
        self.slabs.give_back(slab)

    def _units_of(self, slab: int) -> Iterator[Granule]:
        start = slab * self.slabs.slab_bytes // GRANULE_BYTES
        return (Granule(start + i * self._step) for i in range(self.per_slab))
