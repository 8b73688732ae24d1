"""A number that tells whether units still hold what was written to them: checkpoints and what is restored from them."""

from typing import Protocol

from torch import Tensor


class ChecksumUnits(Protocol):
    """int64 ``[]`` over ``n_bytes`` of each unit of ``units``: any flipped byte and any two swapped words change it.

    ``arena`` uint8 ``[bytes]``; ``units`` int32 ``[units]``, granules of 256 bytes. Word ``i`` (8 bytes) of the unit at
    place ``j``, of ``n`` words each, weighs ``2 (j n + i) + 1``. Weighted words are summed modulo 2^64, in any order.
    """

    def __call__(self, arena: Tensor, units: Tensor, n_bytes: int) -> Tensor: ...
