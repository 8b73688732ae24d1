"""A resume point's state beyond full-attention pages: immutable slot rows, and references on window pages."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, NewType

from torch import Tensor

from plait_engine.state.ledger import Ledger, Units
from plait_engine.state.pools import StateBug
from plait_engine.state.spec import Granule, GroupId, Position

if TYPE_CHECKING:
    from plait_engine.state.offload import Offloaded

StepReceipt = NewType("StepReceipt", int)
"""Proof that a step has been committed: only ``Engine`` makes one, when the step that wrote something is over."""


class Stage(StrEnum):
    RESERVED = "reserved"
    """Rows are taken; a step that is planned or under way will write them."""
    PUBLISHED = "published"
    """Written by a committed step and findable. Immutable from here on."""
    OFFLOADED = "offloaded"
    """Its units lie in a tier. It is there, and must be fetched before anybody can go on from it."""
    GONE = "gone"
    """Everything was given back."""


@dataclass(frozen=True)
class WindowPages:
    """Pages of one windowed group that cover a window: page numbers ``[first, first + len(pages))``."""

    first: int
    pages: tuple[Granule, ...]


@dataclass(eq=False)
class Checkpoint:
    """Valid at exactly ``position``. Owns its slot rows and holds a reference on each of its window pages.

    ``windows`` are shared in the ledger for it. ``checksum`` covers the slot rows' bytes, one number a group, and stays
    on the device; whoever copies the rows back compares. ``fingerprint`` names the layout and the model that wrote
    them. ``births`` are those of all that it owns, from when it came into a tree.
    """

    position: Position
    fingerprint: str
    slots: Units
    windows: dict[GroupId, WindowPages] = field(default_factory=dict)
    checksum: Tensor | None = None
    births: dict[GroupId, list[int | None]] = field(default_factory=dict)
    stage: Stage = Stage.RESERVED
    receipt: StepReceipt | None = None
    leases: int = 0
    away: "Offloaded | None" = None
    """Where its units are while it is offloaded."""

    def publish(self, receipt: StepReceipt, checksum: Tensor | None) -> None:
        """The step that wrote the rows is committed."""
        if self.stage is not Stage.RESERVED:
            raise StateBug(f"a {self.stage} checkpoint at {self.position} is published again")
        self.checksum, self.receipt, self.stage = checksum, receipt, Stage.PUBLISHED

    def discard(self, ledger: Ledger) -> None:
        """Give everything back. Never called while a lease is open."""
        if self.leases:
            raise StateBug(f"a checkpoint at {self.position} is discarded under {self.leases} leases")
        for group, units in self.owned().items():
            ledger.give_back_own(group, units, self.births.get(group, ledger.births(group, units)))
        if self.away is not None:
            self.away.drop()
        self.slots, self.windows, self.away, self.stage = {}, {}, None, Stage.GONE

    def owned(self) -> Units:
        """References that it holds, slot rows and window pages."""
        return {**self.slots, **{group: list(w.pages) for group, w in self.windows.items()}}

    def bytes_in(self, ledger: Ledger) -> int:
        """Bytes of its slot rows. Window pages are shared with who runs there, and small."""
        return sum(len(units) * ledger.groups[group].unit_bytes for group, units in self.slots.items())
