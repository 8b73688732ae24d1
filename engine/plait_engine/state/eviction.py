"""What leaves the prefix tree when room is needed.

Two things can be evicted: the checkpoint of a node that others hang under (its slot rows; the tokens stay, for the
others), and a leaf (pages, checkpoint, and what becomes useless above it). Leased and pinned things never go. A policy
scores them; the lowest score goes first.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from typing import NamedTuple, Protocol

import numpy as np

from plait_engine.state.checkpoint import Stage
from plait_engine.state.compaction import Compactor, Moves
from plait_engine.state.ledger import Demand, Ledger, Units
from plait_engine.state.node import Node, Tokens
from plait_engine.state.resume_point import Match
from plait_engine.state.reuse_model import GRID, Kind, Record, ReuseClass, ReuseModel, Sighting
from plait_engine.state.spec import Granule, GroupId
from plait_engine.state.tree import PrefixTree

Seconds = Callable[[int, int], float]
"""Seconds that computing the tokens ``[start, end)`` takes, everything before them being there."""


def linear_seconds(start: int, end: int) -> float:
    """Ten thousand tokens a second; only ratios matter to a policy."""
    return (end - start) * 1e-4


class Entry(NamedTuple):
    """What would go at once, and what that would cost."""

    node: Node
    end: int
    """Position that could not be resumed at any more."""
    resume: int
    """Nearest surviving resume point before it."""
    seconds: float
    """To compute ``[resume, end)`` again."""
    n_bytes: int
    """Freed."""


class Score(NamedTuple):
    """The lowest goes first. It holds until the tree's clock shows ``until``, unless the node changes."""

    value: float
    until: float = math.inf


class EvictionPolicy(Protocol):
    def score(self, entry: Entry, now: float) -> Score:
        """How much the entry is worth keeping."""

    def evicted(self, entry: Entry, score: float) -> None:
        """The entry has gone, at this score."""

    def forget(self, node: Node) -> None:
        """The node has left the tree."""


class LeastRecentlyUsed:
    def score(self, entry: Entry, now: float) -> Score:  # noqa: ARG002
        return Score(entry.node.last_use - entry.end * 1e-9)

    def evicted(self, entry: Entry, score: float) -> None: ...

    def forget(self, node: Node) -> None: ...


class ExpectedReuse:
    """Expected reuse x seconds to recompute / bytes. Reuse is learned from the prompts that arrive (``ReuseModel``)."""

    def __init__(self, model: ReuseModel) -> None:
        self.model = model
        self._records: dict[Node, tuple[Record | None, bool]] = {}

    def score(self, entry: Entry, now: float) -> Score:
        node = entry.node
        index, age = self.model.index(self._classify(node), now - node.used_at)
        return Score(index * entry.seconds / max(1, entry.n_bytes), node.used_at + age)

    def evicted(self, entry: Entry, score: float) -> None: ...

    def forget(self, node: Node) -> None:
        self._records.pop(node, None)

    def _classify(self, node: Node) -> ReuseClass:
        record, exact = self._record(node)
        if record is None:
            return _UNKNOWN_INNER if node.children else _UNKNOWN_LEAF
        if not exact:
            return _UNKNOWN_INNER if node.children else record.tail
        if record.klass.kind is Kind.PASSED and not node.children:
            return record.tail  # What went on from here is gone; the session may still come back, to this point.
        return record.klass

    def _record(self, node: Node) -> tuple[Record | None, bool]:
        """The record that a node's end goes by, looked up once, and whether it stands for just this end."""
        known = self._records.get(node)
        if known is None:
            tokens = np.concatenate([part.tokens for part in node.path()])
            found = self.model.find(node.namespace, tokens)
            known = (None, False) if found is None else (found.record, found.position == node.end // GRID * GRID)
            self._records[node] = known
        return known


_UNKNOWN_LEAF = ReuseClass(Kind.TAIL, 0, 0)
_UNKNOWN_INNER = ReuseClass(Kind.PASSED, 0, 0)


class Evictor:
    """Keeps everything evictable in order of score: a heap whose stale items are skipped when they come up.

    Nodes that change are only noted, and scored when room is needed, so that look-ups and inserts stay cheap.
    ``count(kind, reason)`` is told of every eviction. With ``move``, survivors are moved out of nearly empty slabs
    where that saves evictions. ``offload`` may bring a checkpoint's state to a tier instead of losing it; the tokens
    stay then, and are evicted in their turn.
    """

    def __init__(
        self,
        tree: PrefixTree,
        policy: EvictionPolicy,
        seconds: Seconds = linear_seconds,
        count: Callable[[str, str], None] | None = None,
        move: Moves | None = None,
        offload: Callable[[Node], bool] | None = None,
    ) -> None:
        self.tree = tree
        self.ledger: Ledger = tree.ledger
        self.policy = policy
        self._seconds = seconds
        self._count = count
        self._offload = offload
        self._unit_bytes = {group.id: group.unit_bytes for group in tree.ledger.groups}
        self._compactor = None if move is None else Compactor(tree, move)
        self._heap: list[tuple[float, int, Node]] = []
        self._expiry: list[tuple[float, int, Node]] = []
        self._stamps: dict[Node, int] = {}
        self._changed: dict[Node, None] = {}
        self._pushes = 0
        tree.observer = self
        self._changed.update(dict.fromkeys(tree.nodes()))

    def changed(self, node: Node) -> None:
        self._changed[node] = None

    def removed(self, node: Node) -> None:
        self._changed.pop(node, None)
        self._stamps.pop(node, None)
        self.policy.forget(node)

    # Make room -------------------------------------------------------------------------------------------------------

    def make_room(self, demand: Demand) -> bool:
        """Evict until ``ledger.can_take(demand)``. False, and next to nothing evicted, where that cannot be reached."""
        if self.ledger.can_take(demand):
            return True
        self._rescore()
        if not self._could_succeed(demand):
            return False
        evicted, compact_at = 0, 0
        while not self.ledger.can_take(demand):
            if self._compactor is not None and evicted >= compact_at:
                if self._compactor.make_room(demand):
                    break
                compact_at = 2 * evicted + 1  # Each try looks at everything, so tries become rarer.
            if not self._evict_one():
                return self._compactor is not None and self._compactor.make_room(demand, at_once=True)
            evicted += 1
        return True

    def _evict_one(self) -> bool:
        while self._heap:
            value, stamp, node = heappop(self._heap)
            if self._stamps.get(node) != stamp:
                continue
            del self._stamps[node]
            entry = self._entry(node)
            if entry is None:
                continue
            score = self.policy.score(entry, self.tree.now())
            if score.value > value:  # A resume point above it has gone since, so this one is worth more now.
                self._push(node, score)
                continue
            self._drop(entry, score.value)
            self._rescore()
            return True
        return False

    def _drop(self, entry: Entry, score: float) -> None:
        node, inner = entry.node, bool(entry.node.children)
        if self._offload is not None and self._offload(node):
            self.changed(node)
            if self._count is not None:
                self._count("checkpoint", "offloaded")
            return
        stranded = not inner and entry.seconds == 0
        if inner:
            self.tree.drop_checkpoint(node)
        else:
            self.tree.drop_leaf(node)
        self.policy.evicted(entry, score)
        if self._count is not None:
            self._count("checkpoint" if inner else "leaf", "unreachable" if stranded else "capacity")

    # Order -----------------------------------------------------------------------------------------------------------

    def _rescore(self) -> None:
        """Score what has changed, and what a policy wants to see again by now."""
        now = self.tree.now()
        while self._expiry and self._expiry[0][0] <= now:
            _, stamp, node = heappop(self._expiry)
            if self._stamps.get(node) == stamp:
                self._changed[node] = None
        for node in self._changed:
            entry = self._entry(node)
            if entry is None:
                self._stamps.pop(node, None)
            else:
                self._push(node, self.policy.score(entry, now))
        self._changed.clear()
        if len(self._heap) > 64 + 4 * len(self._stamps):
            self._heap = [item for item in self._heap if self._stamps.get(item[2]) == item[1]]
            self._heap.sort(key=lambda item: item[:2])

    def _push(self, node: Node, score: Score) -> None:
        self._pushes += 1
        self._stamps[node] = self._pushes
        heappush(self._heap, (score.value, self._pushes, node))
        if score.until < math.inf:
            heappush(self._expiry, (score.until, self._pushes, node))

    def _entry(self, node: Node) -> Entry | None:
        """What evicting at this node means, or None where nothing can go."""
        checkpoint = node.checkpoint
        if node.children:
            if checkpoint is None or checkpoint.leases or checkpoint.stage is Stage.OFFLOADED:
                return None
            n_bytes = self._bytes(checkpoint.slots)
        else:
            if node.leases:
                return None
            n_bytes = sum(self._bytes(gone.pages) for gone in self._going(node))
            n_bytes += 0 if checkpoint is None else self._bytes(checkpoint.slots)
        resume = self._resume(node)
        useless = self.tree.needs_checkpoint and checkpoint is None
        return Entry(node, node.end, resume, 0.0 if useless else self._seconds(resume, node.end), n_bytes)

    def _going(self, leaf: Node) -> Iterator[Node]:
        """The leaf, and the nodes above it that go with it."""
        yield leaf
        node = leaf.parent
        while self.tree.needs_checkpoint and node is not None and node.parent is not None:
            if len(node.children) > 1 or node.checkpoint is not None or node.leases:
                return
            yield node
            node = node.parent

    def _resume(self, node: Node) -> int:
        if not self.tree.needs_checkpoint:
            return node.start
        above = node.parent
        while above is not None and above.checkpoint is None:
            above = above.parent
        return 0 if above is None else above.end

    def _bytes(self, units: Units) -> int:
        return sum(len(addresses) * self._unit_bytes[group] for group, addresses in units.items())

    # Could it work at all? -------------------------------------------------------------------------------------------

    def _could_succeed(self, demand: Demand) -> bool:
        """Whether the demand could be met if everything evictable went. Stops looking as soon as that is sure."""
        tally = _Tally(self.ledger, movable=self._compactor is not None)
        for _, stamp, node in self._heap:
            if self._stamps.get(node) == stamp and self._adds_up(tally, node, demand):
                return True
        tally = _Tally(self.ledger, movable=self._compactor is not None)
        return any(self._adds_up(tally, node, demand) for node in self.tree.nodes()) or tally.covers(demand)

    def _adds_up(self, tally: "_Tally", node: Node, demand: Demand) -> bool:
        if not node.leases:
            tally.add(node.pages)
        if node.checkpoint is not None and not node.checkpoint.leases:
            tally.add(node.checkpoint.owned())
        return tally.covers(demand)


class _Tally:
    """Units that evictions would free, and the slabs that would be empty then."""

    def __init__(self, ledger: Ledger, movable: bool) -> None:
        self.ledger = ledger
        self.slabs = 0
        self._movable = movable
        self._references: Counter[tuple[GroupId, Granule]] = Counter()
        self._freed: Counter[tuple[GroupId, int]] = Counter()
        self._available = {group: pool.available for group, pool in ledger.pools.items()}

    def add(self, units: Units) -> None:
        for group, addresses in units.items():
            pool = self.ledger.pools[group]
            for unit in addresses:
                references = pool.taken.get(unit, 0)
                if references > 1:
                    self._references[group, unit] += 1
                if references == 1 or self._references.get((group, unit)) == references:
                    self._free(group, pool.slab_of(unit))

    def _free(self, group: GroupId, slab: int) -> None:
        pool = self.ledger.pools[group]
        self._available[group] += 1
        self._freed[group, slab] += 1
        if self._movable:
            return
        if self._freed[group, slab] + pool.free_in(slab) == pool.per_slab:
            self._available[group] -= pool.per_slab
            self.slabs += 1

    def covers(self, demand: Demand) -> bool:
        slabs, available = self.ledger.slabs.free + self.slabs, dict(self._available)
        if self._movable:
            for group, pool in self.ledger.pools.items():
                slabs += available[group] // pool.per_slab
                available[group] %= pool.per_slab
        needed = 0
        for group, units in demand.items():
            needed += -(-max(0, units - available[group]) // self.ledger.pools[group].per_slab)
        return needed <= slabs


class LearnedEvictor(Evictor):
    """The evictor that the engine uses: ``ExpectedReuse`` with a model of its own."""

    def __init__(
        self,
        tree: PrefixTree,
        seconds: Seconds = linear_seconds,
        count: Callable[[str, str], None] | None = None,
        move: Moves | None = None,
        offload: Callable[[Node], bool] | None = None,
    ) -> None:
        self.model = ReuseModel()
        super().__init__(tree, ExpectedReuse(self.model), seconds, count, move, offload)

    def observe(self, namespace: str, tokens: Tokens, end: int) -> Sighting:
        """Call once for each request, when it is first admitted; ``end`` is where its checkpoint will be."""
        return self.model.observe(namespace, tokens, end, self.tree.now())


def branch_position(match: Match, sighting: Sighting) -> int | None:
    """Where a prompt should leave a checkpoint on its way since others part from it there; None: nowhere.

    Memory reaches further than the tree but knows positions only in steps of ``GRID``.
    """
    remembered = -1 if sighting.branch is None else sighting.branch
    if remembered > match.known:
        return remembered
    if match.parts or remembered == match.known // GRID * GRID:
        return match.known
    return None
