"""Causal attention over keys and values kept in pages; prefill and decode in one call."""

from typing import Protocol

from torch import Tensor

from plait_kernels.segments import Segments
from plait_kernels.storage import Pages


class PagedAttention(Protocol):
    """Stores the step's keys and values, then lets every token attend to itself and what came before.

    ``q`` ``[T, hq, d]``, ``k`` ``[T, hkv, d]``, ``v`` ``[T, hkv, dv]`` with hq a multiple of hkv (query head i reads
    key head ``i // (hq // hkv)``); ``k_view`` ``[granules, page_size, hkv, d]``, ``v_view`` likewise with dv. Token t
    of a sequence sees positions ``[max(0, t - window + 1), t]``. ``scale`` multiplies the products; ``softcap`` c bends
    them to ``c * tanh(s / c)``; ``sinks`` ``[hq]`` are extra logits that take weight and give no value. Entries that a
    token may not see never touch its result, whatever they hold. Softmax and sums are fp32. Returns ``[T, hq, dv]``.
    """

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        k_view: Tensor,
        v_view: Tensor,
        pages: Pages,
        segments: Segments,
        *,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor: ...
