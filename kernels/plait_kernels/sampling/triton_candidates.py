# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
"""The tokens within the rung that surely holds all that can be kept, in vocabulary order, and the exact borders among
these few, found by bisection."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from plait_kernels.sampling.triton_ladder import LEVELS, Counted, ladder, rung_of
from plait_kernels.sampling.triton_rows import Rows
from plait_kernels.sampling.triton_units import sort_key, warm, weight
from plait_kernels.triton_math import MINUS_INFINITY, power_of_two


@triton.jit
def _gather(
    logits,
    best,
    temperature,
    top_k,
    top_p,
    min_p,
    part_counts,
    part_masses,
    ids,  # int32 [rows, vocab]
    vocab,
    stride,
    PARTS: tl.constexpr,
    PART: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The ids within the rung, in vocabulary order."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    lane = tl.arange(0, BLOCK)
    top = tl.load(best + row)
    heat = warm(tl.load(temperature + row))
    parts = tl.num_programs(1)
    k, p, floor = tl.load(top_k + row), tl.load(top_p + row), tl.load(min_p + row)
    rung, inside, _ = rung_of(part_counts, part_masses, row, parts, k, p, floor, PARTS)
    reach = tl.sum(tl.where(tl.arange(0, LEVELS) == rung, ladder(), 0.0), axis=0)
    place = tl.sum(tl.where(tl.arange(0, PARTS) < part, inside, 0), axis=0)
    begin = part * PART
    for first in range(begin, tl.minimum(begin + PART, vocab), BLOCK):
        at = first + lane
        x = tl.load(logits + row * stride + at, mask=at < vocab, other=MINUS_INFINITY)
        within = (-((x - top) / heat) <= reach) & (at < vocab)
        order = tl.cumsum(within.to(tl.int32), 0)
        tl.store(ids + row * vocab + place + order - 1, at, mask=within)
        place += tl.sum(within.to(tl.int32), axis=0)


@triton.jit
def candidates(logits, ids, first, count, top, heat, BLOCK: tl.constexpr):
    """A block of candidates: (live, id, key, score)."""
    at = first + tl.arange(0, BLOCK)
    live = at < count
    token = tl.load(ids + at, mask=live, other=0)
    x = tl.load(logits + token, mask=live, other=MINUS_INFINITY)
    return live, token, sort_key(x), (x - top) / heat


@triton.jit
def is_kept(live, token, key, score, floor, k_key, k_id, p_key, p_id):
    """Inside all borders; at a border, ids up to the border's own."""
    kept = live & (score >= floor)
    kept = kept & ((key > k_key) | ((key == k_key) & (token <= k_id)))
    return kept & ((key > p_key) | ((key == p_key) & (token <= p_id)))


@triton.jit
def border(logits, ids, count, top, heat, floor, k_key, k_id, wanted, MASS: tl.constexpr, BLOCK: tl.constexpr):
    """The largest key such that tokens with this key or a larger one amount to ``wanted`` (tokens, or mass), and the
    id of the last of its equals that is needed for it. Only tokens inside ``floor`` and ``(k_key, k_id)`` count."""
    low = tl.full((), -2147483648, tl.int64)
    high = tl.full((), 2147483647, tl.int64)
    while low < high:
        middle = (low + high + 1) >> 1
        reached = tl.zeros((BLOCK,), tl.int64)
        for first in range(0, count, BLOCK):
            live, token, key, score = candidates(logits, ids, first, count, top, heat, BLOCK)
            kept = is_kept(live, token, key, score, floor, k_key, k_id, middle, 2147483647)
            reached += tl.where(kept, weight(score) if MASS else 1, 0)
        enough = tl.sum(reached, axis=0) >= wanted
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle - 1)
    before = tl.zeros((BLOCK,), tl.int64)
    for first in range(0, count, BLOCK):
        live, token, key, score = candidates(logits, ids, first, count, top, heat, BLOCK)
        kept = is_kept(live, token, key, score, floor, k_key, k_id, low + 1, 2147483647)
        before += tl.where(kept, weight(score) if MASS else 1, 0)
    reached = tl.sum(before, axis=0)
    last = tl.full((), -1, tl.int32)
    for first in range(0, count, BLOCK):
        live, token, key, score = candidates(logits, ids, first, count, top, heat, BLOCK)
        equal = is_kept(live, token, key, score, floor, k_key, k_id, low, 2147483647) & (key == low)
        each = tl.where(equal, weight(score) if MASS else 1, 0).to(tl.int64)
        sums = reached + tl.cumsum(each, 0)
        needed = equal & (sums - each < wanted)
        last = tl.maximum(last, tl.max(tl.where(needed, token, -1), axis=0))
        reached += tl.sum(each, axis=0)
    return low, last


def gather(rows: Rows, counted: Counted, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    ids = rows.new(torch.int32, rows.logits.shape[1])
    _gather[rows.grid](
        rows.logits,
        rows.best,
        temperature,
        top_k,
        top_p,
        min_p,
        counted.counts,
        counted.masses,
        ids,
        rows.logits.shape[1],
        rows.logits.stride(0),
        PARTS=power_of_two(rows.parts),
        PART=rows.part,
        BLOCK=rows.block,
        num_warps=4,
    )
    return ids
