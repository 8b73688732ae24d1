"""``paged_attention`` in plain PyTorch: one sequence after another, a block of queries at a time."""

from dataclasses import dataclass

import torch
from torch import Tensor

from plait_kernels.segments import Segments
from plait_kernels.storage import Pages

QUERY_BLOCK = 256
"""Queries scored at once, at most."""
SCORES = 1 << 22
"""Scores at once, whatever the history: a long context must not need gigabytes for them."""


@dataclass(frozen=True)
class _Rule:
    scale: float
    window: int | None
    softcap: float | None
    sinks: Tensor | None

    def first_seen(self, position: int) -> int:
        return 0 if self.window is None else max(0, position - self.window + 1)


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
    k_view[pages.write_pages, pages.write_offsets] = k.to(k_view.dtype)
    v_view[pages.write_pages, pages.write_offsets] = v.to(v_view.dtype)
    rule = _Rule(scale, window, softcap, None if sinks is None else sinks.float())
    out = q.new_empty(*q.shape[:2], v.shape[-1])
    for row in range(segments.sequences):
        begin, end = segments.starts_host[row : row + 2]
        block = query_block(q.shape[1], segments.lengths_host[row])
        for start in range(begin, end, block):
            stop = min(start + block, end)
            last = segments.lengths_host[row] - (end - stop)  # positions [last - (stop - start), last) are asked
            first = rule.first_seen(last - (stop - start))
            keys = _entries(k_view, pages, row, first, last)
            values = _entries(v_view, pages, row, first, last)
            out[start:stop] = _attend(q[start:stop], keys, values, last - first, rule).to(q.dtype)
    return out


def query_block(heads: int, length: int) -> int:
    """Queries at once where each sees up to ``length`` entries."""
    return max(1, min(QUERY_BLOCK, SCORES // (heads * max(1, length))))


def _entries(view: Tensor, pages: Pages, row: int, first: int, last: int) -> Tensor:
    """Entries of positions ``[first, last)`` of a sequence as fp32 ``[last - first, heads, dim]``; touches no other."""
    page = first // pages.page_size
    units = pages.table[row, page : -(-last // pages.page_size)].long()
    start = first - page * pages.page_size
    return view[units].flatten(0, 1)[start : start + last - first].float()


def _attend(q: Tensor, keys: Tensor, values: Tensor, length: int, rule: _Rule) -> Tensor:
    """``q`` ``[t, hq, d]`` are the last t of ``length`` positions; keys ``[length, hkv, d]``. fp32 ``[t, hq, dv]``."""
    tokens, heads, dim = q.shape
    kv_heads = keys.shape[1]
    grouped = q.float().reshape(tokens, kv_heads, heads // kv_heads, dim)
    scores = torch.einsum("tkgd,skd->kgts", grouped, keys) * rule.scale
    if rule.softcap is not None:
        scores = rule.softcap * torch.tanh(scores / rule.softcap)
    at = torch.arange(length, device=q.device)
    behind = at[length - tokens :, None] - at  # how far a key lies behind a query
    hidden = behind < 0 if rule.window is None else (behind < 0) | (behind >= rule.window)
    scores = scores.masked_fill(hidden, -torch.inf)
    if rule.sinks is not None:
        sinks = rule.sinks.reshape(kv_heads, -1, 1, 1).expand(-1, -1, tokens, 1)
        scores = torch.cat((scores, sinks), dim=-1)
    weights = scores.softmax(dim=-1)[..., :length]
    return torch.einsum("kgts,skd->tkgd", weights, values).reshape(tokens, heads, -1)
