"""A checkpoint's state that lies in a tier: what it takes to bring it back, and to be sure that it is the same."""

from dataclasses import dataclass

from torch import Tensor

from plait_engine.state.checkpoint import Checkpoint, Stage, WindowPages
from plait_engine.state.ledger import Ledger, Units
from plait_engine.state.pools import StateBug
from plait_engine.state.spec import GroupId
from plait_engine.state.tiers.tier import Key, Tier
from plait_engine.state.unit_copy import UnitCopier


@dataclass(frozen=True)
class Offloaded:
    """``counts``: units of each group, in the order that they were stored in; ``firsts``: window page numbers;
    ``checksum``: a number for each of these groups, over what left the arena.
    """

    tier: Tier
    key: Key
    counts: dict[GroupId, int]
    firsts: dict[GroupId, int]
    checksum: Tensor

    def drop(self) -> None:
        self.tier.drop(self.key)


def offload(checkpoint: Checkpoint, tier: Tier, ledger: Ledger, copier: UnitCopier) -> bool:
    """Bring a published checkpoint's units to the tier and give them back; False, nothing changed: it has no room."""
    units = {group: own for group, own in checkpoint.owned().items() if own}
    if checkpoint.stage is not Stage.PUBLISHED or checkpoint.leases or not units:
        return False
    if any(ledger.births(group, own) != checkpoint.births.get(group) for group, own in units.items()):
        return False  # Some of it is others' by now; what is left of it is found broken when it is looked for.
    checksum = copier.checksum(units)
    key = tier.store(units)
    if key is None:
        return False
    firsts = {group: window.first for group, window in checkpoint.windows.items()}
    for group, own in units.items():
        ledger.give_back(group, own)
    checkpoint.away = Offloaded(tier, key, {group: len(own) for group, own in units.items()}, firsts, checksum)
    checkpoint.slots, checkpoint.windows, checkpoint.births = {}, {}, {}
    checkpoint.stage = Stage.OFFLOADED
    return True


def flawed_group(away: Offloaded, units: Units, copier: UnitCopier) -> GroupId | None:
    """The first group whose bytes are not those that were stored, or None."""
    same = (copier.checksum(units) == away.checksum).tolist()
    return next((group for group, whole in zip(units, same, strict=True) if not whole), None)


def settle(checkpoint: Checkpoint, units: Units, ledger: Ledger) -> None:
    """What was fetched into ``units`` is the checkpoint's state again; the units are its own from now on."""
    away = checkpoint.away
    if away is None or checkpoint.stage is not Stage.OFFLOADED:
        raise StateBug(f"a {checkpoint.stage} checkpoint at {checkpoint.position} comes back from a tier")
    for group, own in units.items():
        if group in away.firsts:
            checkpoint.windows[group] = WindowPages(away.firsts[group], tuple(own))
        else:
            checkpoint.slots[group] = own
    checkpoint.births = {group: ledger.births(group, own) for group, own in units.items()}
    checkpoint.away, checkpoint.stage = None, Stage.PUBLISHED
    away.drop()
