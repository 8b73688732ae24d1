# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
"""The online softmax over keys and values that lie in pages, as decodes and longer pieces take it, in base 2."""

import triton
import triton.language as tl

from plait_kernels.triton_math import LOG2_E, MINUS_INFINITY, dot, tanh


@triton.jit
def base2_scores(raw, scale, softcap, CAPPED: tl.constexpr):
    """Logits times log2(e)."""
    scaled = raw * scale
    if CAPPED:
        scaled = softcap * tanh(scaled / softcap)
    return scaled * LOG2_E


@triton.jit(do_not_specialize_on_alignment=["table"])
def attend(
    query,  # [M, D]
    seen_first,  # [M]: first position that each row sees
    seen_last,  # [M]: and the last one
    best,
    total,
    acc,
    begin,
    stop,
    table,
    k_head,  # the view at the key head
    v_head,
    k_page,
    k_entry,
    v_page,
    v_entry,
    key_dim,
    value_dim,
    scale,
    softcap,
    CAPPED: tl.constexpr,
    MASKED: tl.constexpr,
    PAGE: tl.constexpr,
    KEYS: tl.constexpr,
    D: tl.constexpr,
    DV: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Online softmax over positions ``[begin, stop)``; entries outside are not read. Unless ``MASKED``, every row
    sees all."""
    i = tl.arange(0, D)
    j = tl.arange(0, DV)
    for first in range(begin, stop, KEYS):
        at = first + tl.arange(0, KEYS)
        there = at < stop
        page = tl.load(table + at // PAGE, mask=there, other=0).to(tl.int64)
        entry = (at % PAGE).to(tl.int64)
        key = tl.load(
            k_head + (page * k_page + entry * k_entry)[:, None] + i[None, :],
            mask=there[:, None] & (i < key_dim)[None, :],
            other=0.0,
        )
        value = tl.load(
            v_head + (page * v_page + entry * v_entry)[:, None] + j[None, :],
            mask=there[:, None] & (j < value_dim)[None, :],
            other=0.0,
        )
        scores = base2_scores(dot(query, tl.trans(key).to(query.dtype), PRECISION), scale, softcap, CAPPED)
        seen = there[None, :]
        if MASKED:
            seen = seen & (at[None, :] <= seen_last[:, None]) & (at[None, :] >= seen_first[:, None])
        scores = tl.where(seen, scores, MINUS_INFINITY)
        higher = tl.maximum(best, tl.max(scores, axis=1))
        # A row that has seen nothing yet has no maximum; 0 keeps its weights at exp2(-inf).
        anchor = tl.where(higher == MINUS_INFINITY, 0.0, higher)
        weights = tl.exp2(scores - anchor[:, None])
        shrink = tl.exp2(best - anchor)
        total = total * shrink + tl.sum(weights, axis=1)
        acc = acc * shrink[:, None] + dot(weights.to(query.dtype), value.to(query.dtype), PRECISION)
        best = higher
    return best, total, acc


@triton.jit
def with_sink(best, total, acc, sink):
    """The extra logit takes weight and gives no value."""
    higher = tl.maximum(best, sink)
    shrink = tl.exp2(best - higher)
    return total * shrink + tl.exp2(sink - higher), acc * shrink[:, None]
