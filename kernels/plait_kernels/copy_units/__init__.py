"""Copies of whole units inside the arena: restores, checkpoints, moves."""

from typing import Protocol

from torch import Tensor


class CopyUnits(Protocol):
    """``n_bytes`` from each unit of ``sources`` to the unit of ``targets`` at the same place in the list.

    ``arena`` uint8 ``[bytes]``; ``sources``, ``targets`` int32 ``[units]``, granules of 256 bytes. Targets must not
    overlap one another or any source.
    """

    def __call__(self, arena: Tensor, sources: Tensor, targets: Tensor, n_bytes: int) -> None: ...
