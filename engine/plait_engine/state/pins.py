"""Pinned prefixes: who keeps what, until when, and how much of memory that may take.

A pin holds a resume point of the tree as a lease does, so nothing of it is evicted while it is alive. It ends by its
time, by being taken off, or when what it holds is found broken.
"""

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from plait_engine.pin import PinOrder, PinReport
from plait_engine.state.node import Node, Tokens
from plait_engine.state.resume_point import ResumePoint
from plait_engine.state.spec import GroupId, PagedSpec
from plait_engine.state.tree import PrefixTree
from plait_engine.stats import Stats

MAX_PINS = 64
"""Of one tenant."""
EVENTS = ("created", "renewed", "refused", "removed", "expired", "broken")


class PinRefused(Exception):
    """The message says what to change."""


@dataclass(eq=False)
class Pin:
    id: str
    tenant: str
    point: ResumePoint
    expires: float | None
    """On the clock of ``Pins``; None: never."""
    configured: bool


class Pins:
    """Owns the pins of all tenants. ``budget_slabs`` is what they may hold together."""

    def __init__(
        self, tree: PrefixTree, stats: Stats, budget_slabs: int, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.budget_slabs = budget_slabs
        self._tree = tree
        self._stats = stats
        self._now = now
        self._pins: dict[str, Pin] = {}
        self._next_expiry: float | None = None
        for event in EVENTS:
            stats.count("plait_pin_events_total", 0, f"event={event}")

    @property
    def budget_bytes(self) -> int:
        return self.budget_slabs * self._tree.ledger.slabs.slab_bytes

    # Pin and unpin ----------------------------------------------------------------------------------------------------

    def refuse_hopeless(self, tenant: str, namespace: str, tokens: Tokens) -> None:
        """Raises ``PinRefused`` when ``tokens`` cannot be pinned as it is now, before anything is computed for it."""
        self.sweep()
        if pin_id(namespace, tokens) in self._pins:
            return
        try:
            self._check_count(tenant)
            shared = self._pages_of(node for node in self._tree.known_path(namespace, tokens) if node.pins)
            mine = self._estimate(len(tokens)) - shared
            self._check_room(len(tokens), mine + self._units_of(pin.point for pin in self._pins.values()))
        except PinRefused:
            self._count("refused")
            raise

    def pin(self, tenant: str, namespace: str, tokens: Tokens, point: ResumePoint, order: PinOrder) -> Pin:
        """Keep ``point``, which lies at the end of ``tokens``; or, where that is pinned already, keep it longer."""
        self.sweep()
        expires = None if order.ttl_seconds is None else self._now() + order.ttl_seconds
        pin = self._pins.get(id := pin_id(namespace, tokens))
        if pin is not None:
            forever = pin.expires is None or expires is None
            pin.expires = None if forever else max(pin.expires or 0.0, expires or 0.0)
            pin.configured |= order.configured
            self._count("renewed")
        else:
            pin = Pin(id, tenant, point, expires, order.configured)
            try:
                self._check_count(tenant)
                points = [point, *(other.point for other in self._pins.values())]
                self._check_room(len(tokens), self._units_of(points))
            except PinRefused:
                self._count("refused")
                raise
            self._tree.pin(point)
            self._pins[id] = pin
            self._count("created")
        self._plan_expiry()
        return pin

    def refuse(self, reason: str) -> PinRefused:
        """For what could not be pinned for a reason found elsewhere."""
        self._count("refused")
        return PinRefused(reason)

    def find(self, tenant: str, id: str) -> Pin | None:
        """A tenant's own pin. Others' are as unknown as those that do not exist."""
        self.sweep()
        pin = self._pins.get(id)
        return pin if pin is not None and pin.tenant == tenant else None

    def remove(self, pin: Pin) -> None:
        self._release(pin, "removed")

    def sweep(self) -> None:
        """Let go of what is over: expired, or found broken and cut from the tree."""
        now = self._now()
        for pin in [*self._pins.values()]:
            if not pin.point.node.pinned:
                self._release(pin, "broken")
            elif pin.expires is not None and pin.expires <= now:
                self._release(pin, "expired")

    def sweep_expired(self) -> None:
        """``sweep`` when there is something to let go of. Next to nothing otherwise: called at every step."""
        if self._next_expiry is not None and self._next_expiry <= self._now():
            self.sweep()

    def _release(self, pin: Pin, event: str) -> None:
        del self._pins[pin.id]
        # Where no checkpoints are needed, a node may be held by pins at several of its positions.
        if not any(other.point.node is pin.point.node for other in self._pins.values()):
            self._tree.unpin(pin.point)
        self._count(event)
        self._plan_expiry()

    def _plan_expiry(self) -> None:
        self._next_expiry = min((pin.expires for pin in self._pins.values() if pin.expires is not None), default=None)

    # Room -------------------------------------------------------------------------------------------------------------

    def pinned_bytes(self) -> int:
        """Of memory that pins keep from being evicted. What several of them share counts once, but for pages across a
        border of two nodes, which both count: an upper bound that needs no look at every page.
        """
        return self._bytes(self._units_of(pin.point for pin in self._pins.values()))

    def _check_count(self, tenant: str) -> None:
        if sum(pin.tenant == tenant for pin in self._pins.values()) >= MAX_PINS:
            raise PinRefused(f"there are {MAX_PINS} pins already, as many as one tenant may have; take one off first")

    def _check_room(self, tokens: int, units: Counter[GroupId]) -> None:
        pools = self._tree.ledger.pools
        slabs = sum(-(-count // pools[group].per_slab) for group, count in units.items())
        if slabs > self.budget_slabs:
            raise PinRefused(
                f"with these {tokens} tokens, pins would hold {self._bytes(units):,} bytes, more than the "
                f"{self.budget_bytes:,} that they may: pin less, take another pin off, or give the server more memory "
                "or a larger pin_share"
            )

    def _estimate(self, tokens: int) -> Counter[GroupId]:
        units = Counter[GroupId]()
        for group in self._tree.ledger.groups:
            units[group.id] = group.pages_for(tokens) if group.paged else group.units_per_slot
            if isinstance(group.spec, PagedSpec) and group.spec.window is not None:
                units[group.id] = min(units[group.id], group.pages_for(group.spec.window) + 1)
        return units

    def _units_of(self, points: Iterable[ResumePoint]) -> Counter[GroupId]:
        points = list(points)
        units = self._pages_of({node for point in points for node in point.node.path()})
        for checkpoint in {point.checkpoint for point in points if point.checkpoint is not None}:
            units.update({group: len(addresses) for group, addresses in checkpoint.owned().items()})
        return units

    @staticmethod
    def _pages_of(nodes: Iterable[Node]) -> Counter[GroupId]:
        units = Counter[GroupId]()
        for node in nodes:
            units.update({group: len(pages) for group, pages in node.pages.items()})
        return units

    def _bytes(self, units: Counter[GroupId]) -> int:
        groups = self._tree.ledger.groups
        return sum(count * groups[group].unit_bytes for group, count in units.items())

    # Seen -------------------------------------------------------------------------------------------------------------

    def of(self, tenant: str) -> tuple[PinReport, ...]:
        self.sweep()
        return tuple(self.report(pin) for pin in self._pins.values() if pin.tenant == tenant)

    def report(self, pin: Pin) -> PinReport:
        return PinReport(
            id=pin.id,
            tokens=pin.point.position,
            n_bytes=self._bytes(self._units_of([pin.point])),
            expires_in_seconds=None if pin.expires is None else max(0.0, pin.expires - self._now()),
            configured=pin.configured,
        )

    def gauges(self) -> dict[str, dict[str, float]]:
        return {
            "plait_pins": {"": float(len(self._pins))},
            "plait_pinned_bytes": {"": float(self.pinned_bytes())},
            "plait_pin_budget_bytes": {"": float(self.budget_bytes)},
        }

    def _count(self, event: str) -> None:
        self._stats.count("plait_pin_events_total", labels=f"event={event}")


def pin_id(namespace: str, tokens: Tokens) -> str:
    """The same prefix in the same namespace has the same id, so pinning it twice is pinning it longer."""
    digest = hashlib.sha256(namespace.encode() + b"\0" + tokens.tobytes())
    return f"pin-{digest.hexdigest()[:32]}"
