"""``paged_attention`` in C++: pages are read where they lie."""

import torch
from torch import Tensor

from plait_kernels.cpu.library import DTYPES, Library, pointer
from plait_kernels.paged_attention import PagedAttention, reference
from plait_kernels.segments import Segments
from plait_kernels.storage import Pages


def cpu_paged_attention(library: Library) -> PagedAttention:
    call = library.op("paged_attention", "29q2d")

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
        dtype = q.dtype
        fits = (
            dtype in DTYPES
            and k.dtype == v.dtype == k_view.dtype == v_view.dtype == dtype
            and q.stride(-1) == k.stride(-1) == v.stride(-1) == 1
            and pages.table.dtype == torch.int32
            and pages.table.stride(-1) == 1
        )
        if not fits:
            return reference.paged_attention(
                q, k, v, k_view, v_view, pages, segments, scale=scale, window=window, softcap=softcap, sinks=sinks
            )
        if sinks is not None:
            sinks = sinks.float().contiguous()
        tokens, query_heads, dim = q.shape
        heads, value_dim = v.shape[1:]
        out = torch.empty((tokens, query_heads, value_dim), dtype=dtype)
        call(
            DTYPES[dtype],
            segments.sequences,
            segments.decodes,
            query_heads,
            heads,
            dim,
            value_dim,
            q.data_ptr(),
            *q.stride()[:2],
            k.data_ptr(),
            *k.stride()[:2],
            v.data_ptr(),
            *v.stride()[:2],
            k_view.data_ptr(),
            v_view.data_ptr(),
            k_view.stride(0),
            pages.table.data_ptr(),
            pages.table.stride(0),
            pages.write_pages.data_ptr(),
            pages.write_offsets.data_ptr(),
            pages.page_size,
            segments.starts.data_ptr(),
            segments.lengths.data_ptr(),
            window or 0,
            pointer(sinks),
            out.data_ptr(),
            scale,
            softcap or 0.0,
        )
        return out

    return paged_attention
