"""Queries and keys made ready for attention: norm over each head, where there is one, then rotary."""

from typing import Protocol

from torch import Tensor


class QkRotary(Protocol):
    """``rotary(rms_norm(u, weight, eps, offset=offset), positions, cos_sin)`` for queries and for keys at once.

    ``q`` ``[T, hq, d]``, ``k`` ``[T, hkv, d]``, ``q_weight``, ``k_weight`` ``[d]``, or both None (no norm);
    ``cos_sin`` as for ``rotary``, or None (no rotation). Returns new q and k. The cache is written by
    ``paged_attention`` itself.
    """

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        q_weight: Tensor | None,
        k_weight: Tensor | None,
        eps: float,
        positions: Tensor,
        cos_sin: Tensor | None,
        *,
        offset: float = 0.0,
    ) -> tuple[Tensor, Tensor]: ...
