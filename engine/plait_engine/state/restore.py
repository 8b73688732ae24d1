"""Going on from a resume point: the checks that it is whole, and the copies that bring it to a sequence.

Four checks, in the order of their cost: pages complete, layout the same, every group there at the same position (all
three on the host, at admission), and the bytes (on the device, with the copy; known when the step is committed).
"""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from plait_engine.state.checkpoint import Checkpoint, Stage
from plait_engine.state.lease import Lease
from plait_engine.state.ledger import Ledger
from plait_engine.state.node import Node, pages_of
from plait_engine.state.resume_point import ResumePoint
from plait_engine.state.spec import PagedSpec, Position, StateGroup
from plait_engine.state.unit_copy import UnitCopier, UnitCopy


class Flaw(NamedTuple):
    """What is wrong with a resume point: labels of ``plait_state_restore_failures_total``. ``node``: pages of this one
    are not there, so that nothing behind it can be used either.
    """

    state: str
    reason: str
    node: Node | None = None


TIER_REASONS = ("tier_failed", "tier_timeout")


def reasons(group: StateGroup) -> tuple[str, ...]:
    """All that may be wrong with a group's part of a resume point."""
    if group.full:
        return ("pages_missing", "stale")
    if group.paged:
        return ("no_checkpoint", "position", "layout", "pages_missing", "stale", *TIER_REASONS)
    return ("no_checkpoint", "position", "layout", "slot_missing", "stale", "checksum", *TIER_REASONS)


def find_flaw(point: ResumePoint, ledger: Ledger, fingerprint: str) -> Flaw | None:
    """The first of checks 1 to 3 that fails, or None."""
    path = point.node.path()
    for group in ledger.groups:
        if group.full:
            for node in path:
                if reason := _flaw_of(node, group, ledger):
                    return Flaw(group.spec.kind, reason, node)
        elif point.checkpoint is None:
            return Flaw(group.spec.kind, "no_checkpoint")
        elif (reason := _flaw_in(point.checkpoint, group, point.position, ledger, fingerprint)) is not None:
            return Flaw(group.spec.kind, reason)
    return None


def _flaw_of(node: Node, group: StateGroup, ledger: Ledger) -> str | None:
    pages = node.pages[group.id]
    if len(pages) != pages_of(node, group) or ledger.births(group.id, pages) != node.births[group.id]:
        return "pages_missing" if len(pages) != pages_of(node, group) or not ledger.holds(group.id, pages) else "stale"
    return None


def _flaw_in(
    checkpoint: Checkpoint, group: StateGroup, position: Position, ledger: Ledger, fingerprint: str
) -> str | None:
    if checkpoint.stage not in (Stage.PUBLISHED, Stage.OFFLOADED) or checkpoint.position != position:
        return "position"
    if checkpoint.fingerprint != fingerprint:
        return "layout"
    if checkpoint.stage is Stage.OFFLOADED:
        return None  # Its parts are checked when they have come.
    births = checkpoint.births.get(group.id)
    if not group.paged:
        rows = checkpoint.slots.get(group.id, [])
        if len(rows) != group.units_per_slot or not ledger.holds(group.id, rows):
            return "slot_missing"
        return None if ledger.births(group.id, rows) == births else "stale"
    assert isinstance(group.spec, PagedSpec)
    window = checkpoint.windows.get(group.id)
    first = group.spec.needed(position).start // group.page_size
    if window is None or window.first > first or window.first + len(window.pages) != group.pages_for(position):
        return "pages_missing"
    if not ledger.holds(group.id, window.pages):
        return "pages_missing"
    return None if ledger.births(group.id, window.pages) == births else "stale"


@dataclass(frozen=True)
class Restore:
    """A leased resume point on its way to a sequence, launched in front of the sequence's first step."""

    point: ResumePoint
    lease: Lease
    copies: tuple[UnitCopy, ...]

    def launch(self, copier: UnitCopier) -> Tensor | None:
        """Copy, and check what was copied: a bool for each group of the checkpoint's slots, whether their bytes are
        those that were written. ``verdict`` wants it on the host."""
        copier.copy(list(self.copies))
        checkpoint = self.point.checkpoint
        if checkpoint is None or checkpoint.checksum is None:
            return None
        return copier.checksum(checkpoint.slots) == checkpoint.checksum

    def verdict(self, same: Tensor | None, groups: tuple[StateGroup, ...]) -> Flaw | None:
        """Check 4, on the host."""
        if same is None:
            return None
        assert self.point.checkpoint is not None
        whole = dict(zip(self.point.checkpoint.slots, same.tolist(), strict=True))
        flawed = (group.spec.kind for group in groups if not whole.get(group.id, True))
        return next((Flaw(kind, "checksum") for kind in flawed), None)
