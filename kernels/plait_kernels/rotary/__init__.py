"""Rotary position embedding (Su et al. 2021), halves convention."""

from typing import Protocol

from torch import Tensor


class Rotary(Protocol):
    """Turns the first ``rotary_dim`` channels of every head by the token's angle; the rest pass through.

    ``x`` ``[T, heads, dim]``, ``positions`` ``[T]``, ``cos_sin`` fp32 ``[max, rotary_dim]``: a row holds the cosines of
    its position, then the sines. Channel i is paired with channel ``i + rotary_dim / 2``. Returns a new tensor.
    """

    def __call__(self, x: Tensor, positions: Tensor, cos_sin: Tensor) -> Tensor: ...
