"""What the cache asks of memory behind the arena, whatever it is: host memory, a disk, an object store."""

from enum import StrEnum
from typing import NewType, Protocol

from plait_engine.state.ledger import Units
from plait_engine.state.spec import GroupId

Key = NewType("Key", int)


class Progress(StrEnum):
    UNDER_WAY = "under way"
    DONE = "done"
    """Every byte lies in its unit."""
    FAILED = "failed"


class Transfer(Protocol):
    """Bytes on their way from a tier to units of the arena."""

    @property
    def missing(self) -> GroupId | None:
        """Which group's part was not there, when that is why it failed and it is known."""

    def poll(self) -> Progress:
        """How far it is. Never waits."""

    def cancel(self) -> None:
        """When this returns, nothing is written to the units any more: they may be others' from then on."""


class Tier(Protocol):
    """Owns copies of units, by key. It may lose any of them at any time; a fetch of what is lost fails."""

    @property
    def name(self) -> str:
        """As in the label ``tier`` of metrics."""

    def store(self, units: Units) -> Key | None:
        """Keep a copy of what lies in the units, which are not needed any more when this returns; None: no room."""

    def fetch(self, key: Key, units: Units) -> Transfer:
        """Begin to bring a copy into ``units``, as many of each group as were stored. Returns at once."""

    def drop(self, key: Key) -> None:
        """Forget a copy. Nothing happens where it is lost already."""

    def close(self) -> None:
        """The engine ends: leave nothing half-written."""
