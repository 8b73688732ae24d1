"""References on all of a resume point, held until its last use."""

from typing import Protocol

from plait_engine.state.pools import StateBug
from plait_engine.state.resume_point import ResumePoint


class Lessor(Protocol):
    """Who keeps what is leased."""

    def end_lease(self, point: ResumePoint) -> None:
        """One lease on the point less."""


class Lease:
    """Given back exactly once; giving back twice is a bug."""

    def __init__(self, lessor: Lessor, point: ResumePoint) -> None:
        self.point = point
        self._lessor = lessor
        self._open = True

    def give_back(self) -> None:
        if not self._open:
            raise StateBug("a lease is given back twice")
        self._open = False
        self._lessor.end_lease(self.point)
