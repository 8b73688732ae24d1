"""Resume points on their way back from a tier, and the sequences that wait for them in the queue."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from plait_engine.sequence import Sequence
from plait_engine.state.lease import Lease
from plait_engine.state.ledger import Demand, Ledger, Units
from plait_engine.state.offload import flawed_group, settle
from plait_engine.state.restore import Flaw
from plait_engine.state.resume_point import ResumePoint
from plait_engine.state.spec import GroupId
from plait_engine.state.tiers.tier import Progress, Transfer
from plait_engine.state.tree import PrefixTree
from plait_engine.state.unit_copy import UnitCopier

PATIENCE_SECONDS = 5.0
"""What has not come by then is computed."""


@dataclass(eq=False)
class Fetch:
    """``units`` are nobody else's until all bytes are there and found true; then they are the checkpoint's. The lease
    keeps the resume point until nobody waits for it any more, so that it does not go again before it is used.
    """

    point: ResumePoint
    lease: Lease
    units: Units
    transfer: Transfer
    deadline: float
    waiting: set[Sequence] = field(default_factory=set)
    over: bool = False


class Fetches:
    """Owns the fetches. Nobody ever waits for one inside of a step: ``poll`` looks, between steps, what has come."""

    def __init__(
        self,
        tree: PrefixTree,
        copier: UnitCopier,
        take: Callable[[Demand], Units | None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.patience_seconds = PATIENCE_SECONDS
        self._tree = tree
        self._copier = copier
        self._take = take
        self._now = now
        self._open: list[Fetch] = []

    @property
    def under_way(self) -> bool:
        return any(not fetch.over for fetch in self._open)

    def wait_for(self, sequence: Sequence, point: ResumePoint) -> bool:
        """See that an offloaded resume point comes, and that ``sequence`` is counted among those who wait for it.
        False: there is no room for it.
        """
        fetch = next((f for f in self._open if f.point.checkpoint is point.checkpoint), None)
        if fetch is not None and sequence in fetch.waiting:
            return True
        self.leave(sequence)
        fetch = fetch or self._begin(point)
        if fetch is None:
            return False
        fetch.waiting.add(sequence)
        return True

    def _begin(self, point: ResumePoint) -> Fetch | None:
        assert point.checkpoint is not None
        away = point.checkpoint.away
        assert away is not None
        lease = self._tree.lease(point)
        units = self._take(away.counts)
        if units is None:
            lease.give_back()
            return None
        transfer = away.tier.fetch(away.key, units)
        fetch = Fetch(point, lease, units, transfer, self._now() + self.patience_seconds)
        self._open.append(fetch)
        return fetch

    def poll(self) -> Iterator[tuple[Fetch, Flaw | None]]:
        """Fetches that are over now, and what was wrong with them. Where something was, nothing of them is left."""
        for fetch in [f for f in self._open if not f.over]:
            progress = fetch.transfer.poll()
            if progress is Progress.UNDER_WAY and self._now() < fetch.deadline:
                continue
            flaw = self._flaw(fetch, progress)
            if flaw is None:
                self._settle(fetch)
            else:
                self._end(fetch)
            yield fetch, flaw

    def _flaw(self, fetch: Fetch, progress: Progress) -> Flaw | None:
        group, reason = fetch.transfer.missing, "tier_failed" if progress is Progress.FAILED else "tier_timeout"
        if progress is Progress.DONE:
            assert fetch.point.checkpoint is not None
            assert fetch.point.checkpoint.away is not None
            group, reason = flawed_group(fetch.point.checkpoint.away, fetch.units, self._copier), "checksum"
            if group is None:
                return None
        return Flaw(self._kind(min(fetch.units) if group is None else group), reason)

    def _settle(self, fetch: Fetch) -> None:
        assert fetch.point.checkpoint is not None
        settle(fetch.point.checkpoint, fetch.units, self._ledger)
        fetch.over, fetch.units = True, {}

    def leave(self, sequence: Sequence) -> None:
        """The sequence does not wait any more. What nobody waits for is called off."""
        for fetch in [f for f in self._open if sequence in f.waiting]:
            fetch.waiting.remove(sequence)
            if not fetch.waiting:
                self._end(fetch)

    def recall(self) -> bool:
        """Call off everything; whether there was anything. Memory that fetches hold is needed by who comes first."""
        ended = [*self._open]
        for fetch in ended:
            self._end(fetch)
        return bool(ended)

    def _end(self, fetch: Fetch) -> None:
        if not fetch.over:
            fetch.transfer.cancel()
        for group, own in fetch.units.items():
            self._ledger.give_back(group, own)
        fetch.units, fetch.over = {}, True
        fetch.lease.give_back()
        self._open.remove(fetch)

    def _kind(self, group: GroupId) -> str:
        return self._ledger.groups[group].spec.kind

    @property
    def _ledger(self) -> Ledger:
        return self._tree.ledger

    def owned(self) -> Iterator[Units]:
        for fetch in self._open:
            yield fetch.units
