"""A tier that is as slow and as unreliable as is wanted: for drills and tests."""

from dataclasses import dataclass, field
from itertools import count

import torch
from torch import Tensor

from plait_engine.state.arena import Arena
from plait_engine.state.ledger import Units
from plait_engine.state.spec import GroupId, StateGroup
from plait_engine.state.tiers.tier import Key, Progress

NEVER = 1 << 60


@dataclass(eq=False)
class SlowTransfer:
    """Bytes come in two halves, so that one that is cancelled has written something. ``polls`` until it is over."""

    tier: "SlowTier"
    key: Key
    units: Units
    polls: int
    missing: GroupId | None = None
    cancelled: bool = False

    def poll(self) -> Progress:
        assert not self.cancelled, "a transfer that was cancelled is asked for"
        contents = self.tier.contents.get(self.key)
        if self.tier.failing or contents is None:
            return Progress.FAILED
        self.missing = next((group for group in self.units if group not in contents), None)
        if self.missing is not None:
            return Progress.FAILED
        self.polls -= 1
        self._write(contents, slice(None, None, 2) if self.polls > 0 else slice(None))
        return Progress.UNDER_WAY if self.polls > 0 else Progress.DONE

    def _write(self, contents: dict[GroupId, Tensor], which: slice) -> None:
        for group, addresses in self.units.items():
            self.tier.view(group)[torch.tensor(addresses[which], dtype=torch.int64)] = contents[group][which]

    def cancel(self) -> None:
        self.cancelled = True
        self.tier.cancelled += 1


@dataclass(eq=False)
class SlowTier:
    """``polls``: how often a transfer is looked at until it is over. ``most``: copies that it has room for."""

    arena: Arena
    groups: tuple[StateGroup, ...]
    polls: int = 1
    most: int = NEVER
    failing: bool = False
    name: str = "slow"
    contents: dict[Key, dict[GroupId, Tensor]] = field(default_factory=dict)
    cancelled: int = 0
    closed: bool = False
    _keys: "count[int]" = field(default_factory=count)

    def view(self, group: GroupId) -> Tensor:
        return self.arena.units(self.groups[group].unit_bytes)

    def store(self, units: Units) -> Key | None:
        if len(self.contents) >= self.most:
            return None
        key = Key(next(self._keys))
        self.contents[key] = {group: self.view(group)[torch.tensor(own)].clone() for group, own in units.items()}
        return key

    def fetch(self, key: Key, units: Units) -> SlowTransfer:
        return SlowTransfer(self, key, units, self.polls)

    def drop(self, key: Key) -> None:
        self.contents.pop(key, None)

    def close(self) -> None:
        self.closed = True
