"""Free whole slabs by moving what survives in them, where that is cheaper than evicting it."""

from collections import Counter
from collections.abc import Callable, Iterator

from plait_engine.state.checkpoint import Checkpoint, WindowPages
from plait_engine.state.ledger import Demand
from plait_engine.state.spec import Granule, GroupId
from plait_engine.state.tree import PrefixTree
from plait_engine.state.unit_copy import UnitCopy

Moves = Callable[[list[UnitCopy]], None]
"""Launches copies: targets are free before the whole list, sources after it; no unit is both."""


WORTH_IT = 128
"""One slab in so many that moves would empty. Finding out what may be moved costs a look at everything, however little
is wanted, and in a full cache room is wanted at every other step."""


class Compactor:
    """Moves units that only the tree refers to, none of them leased but by a pin. ``move`` copies all at once, between
    steps.
    """

    def __init__(self, tree: PrefixTree, move: Moves) -> None:
        self.tree = tree
        self._move = move

    def make_room(self, demand: Demand, *, at_once: bool = False) -> bool:
        """Move until the ledger can take ``demand``; False, and nothing moved, where moving is not enough. Also False
        where few slabs could be emptied, unless it must be ``at_once``: evicting a little more costs less."""
        ledger = self.tree.ledger
        missing = ledger.slabs_for(demand) - ledger.slabs.free
        wanted = max(missing, ledger.slabs.total // WORTH_IT)
        spare = {g: pool.available - min(pool.available, demand.get(g, 0)) for g, pool in ledger.pools.items()}
        could = sum(spare[g] // pool.per_slab for g, pool in ledger.pools.items())
        if could < (missing if at_once else wanted):
            return False
        leaving = self._choose(missing, wanted, spare)
        if leaving is None:
            return False
        self._execute(leaving)
        return ledger.can_take(demand)

    def _choose(self, missing: int, wanted: int, spare: dict[GroupId, int]) -> dict[GroupId, list[int]] | None:
        """The emptiest slabs whose units can all move: up to ``wanted`` of them, or None if fewer than ``missing``."""
        movable, leaving = self._counts(), {group: list[int]() for group in spare}
        chosen = 0
        for group, pool in self.tree.ledger.pools.items():
            places = spare[group]
            for slab in pool.emptiest():
                if chosen >= wanted or places < pool.per_slab:
                    break
                if all(movable[group][unit] == references for unit, references in pool.taken_in(slab)):
                    leaving[group].append(slab)
                    places -= pool.per_slab
                    chosen += 1
        return leaving if chosen >= missing else None

    def _counts(self) -> dict[GroupId, Counter[Granule]]:
        """References on each unit that may follow a move. Where there are more, somebody outside of the tree, or a
        lease, may have its address."""
        counts: dict[GroupId, Counter[Granule]] = {group: Counter() for group in self.tree.ledger.pools}
        for group, units in self._movable():
            counts[group].update(units)
        return counts

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
                if not pairs.keys().isdisjoint(node.pages.get(group, ())):
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
