"""``paged_attention`` as Triton kernels.

Decodes read their own key and value as inputs, and store them while they attend; keys and values of longer pieces are
stored first.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from plait_kernels.paged_attention import PagedAttention
from plait_kernels.paged_attention.call import Call
from plait_kernels.paged_attention.triton_decode import run_decode
from plait_kernels.paged_attention.triton_prefill import run_prefill
from plait_kernels.paged_attention.triton_store import run_store
from plait_kernels.segments import Segments
from plait_kernels.storage import Pages
from plait_kernels.triton_math import dense_last


def attention_with(prefill: Callable[[Call], None]) -> PagedAttention:
    """The op whose longer pieces attend by ``prefill``, to keys and values that are stored."""

    def paged_attention(
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
    ) -> Tensor:
        q, k, v = dense_last(q), dense_last(k), dense_last(v)
        out = torch.empty(*q.shape[:2], v.shape[2], dtype=q.dtype, device=q.device)
        call = Call(q, k, v, k_view, v_view, pages, segments, scale, window, softcap, sinks, out)
        if segments.tokens > segments.decodes:
            run_store(call)
        if segments.decodes:
            run_decode(call)
        if segments.tokens > segments.decodes:
            prefill(call)
        return out

    return paged_attention


paged_attention = attention_with(run_prefill)
