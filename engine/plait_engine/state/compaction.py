"""Free whole slabs by moving what survives in them, where that is cheaper than evicting it."""

from collections.abc import Callable, Iterator

from plait_engine.state.checkpoint import Checkpoint, WindowPages
from plait_engine.state.ledger import Demand
from plait_engine.state.spec import Granule, GroupId
from plait_engine.state.tree import PrefixTree
from plait_engine.state.unit_copy import UnitCopy

Moves = Callable[[list[UnitCopy]], None]
"""Launches copies: targets are free before the whole list, sources after it; no unit is both."""


class Compactor:
    """Moves units that only the tree refers to, none of them leased but by a pin. ``move`` copies all at once, between
    steps.
    """

    def __init__(self, tree: PrefixTree, move: Moves) -> None:
        self.tree = tree
        self._move = move

    def make_room(self, demand: Demand) -> bool:
        """Move until the ledger can take ``demand``; False, and nothing moved, where moving is not enough."""
        ledger = self.tree.ledger
        missing = ledger.slabs_for(demand) - ledger.slabs.free
        spare = {g: pool.available - min(pool.available, demand.get(g, 0)) for g, pool in ledger.pools.items()}
        if sum(spare[g] // pool.per_slab for g, pool in ledger.pools.items()) < missing:
            return False
        leaving = self._choose(missing, spare)
        if leaving is None:
            return False
        self._execute(leaving)
        return ledger.can_take(demand)

    def _choose(self, missing: int, spare: dict[GroupId, int]) -> dict[GroupId, list[int]] | None:
        """The emptiest slabs whose units can all move, ``missing`` of them, or None."""
        fixed, leaving = self._fixed(), {group: list[int]() for group in spare}
        for group, pool in self.tree.ledger.pools.items():
            places = spare[group]
            for slab in pool.emptiest():
                if missing <= 0 or places < pool.per_slab:
                    break
                if slab not in fixed:
                    leaving[group].append(slab)
                    places -= pool.per_slab
                    missing -= 1
        return leaving if missing <= 0 else None

    def _fixed(self) -> set[int]:
        """Slabs with a unit that somebody outside of the tree, or a lease, may have the address of."""
        movable: dict[GroupId, dict[Granule, int]] = {group: {} for group in self.tree.ledger.pools}
        for group, units in self._movable():
            references = movable[group]
            for unit in units:
                references[unit] = references.get(unit, 0) + 1
        return {
            pool.slab_of(unit)
            for group, pool in self.tree.ledger.pools.items()
            for unit, references in pool.taken.items()
            if movable[group].get(unit, 0) != references
        }

    def _movable(self) -> Iterator[tuple[GroupId, list[Granule]]]:
        """What the tree holds without a lease but a pin's. Not units that were freed and taken by others since."""
        births = self.tree.ledger.births
        for node in self.tree.nodes():
            holders = [] if node.leases > node.pins else [(node.pages, node.births)]
            if node.checkpoint is not None and node.checkpoint.leases == node.pinned:
                holders.append((node.checkpoint.owned(), node.checkpoint.births))
            for owned, born in holders:
                yield from ((group, units) for group, units in owned.items() if births(group, units) == born.get(group))

    def _execute(self, leaving: dict[GroupId, list[int]]) -> None:
        ledger = self.tree.ledger
        moves = {group: ledger.pools[group].relocate(slabs) for group, slabs in leaving.items() if slabs}
        self._move(
            [UnitCopy(group, source, target) for group, pairs in moves.items() for source, target in pairs.items()]
        )
        for group, pairs in moves.items():
            ledger.spoil(group, list(pairs))
        for node in self.tree.nodes():
            for group, pairs in moves.items():
                if group in node.pages:
                    node.pages[group] = [pairs.get(unit, unit) for unit in node.pages[group]]
                if node.checkpoint is not None:
                    _readdress(node.checkpoint, group, pairs)


def _readdress(checkpoint: Checkpoint, group: GroupId, pairs: dict[Granule, Granule]) -> None:
    if group in checkpoint.slots:
        checkpoint.slots[group] = [pairs.get(unit, unit) for unit in checkpoint.slots[group]]
    if group in checkpoint.windows:
        window = checkpoint.windows[group]
        pages = tuple(pairs.get(unit, unit) for unit in window.pages)
        checkpoint.windows[group] = WindowPages(window.first, pages)
