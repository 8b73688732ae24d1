# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
"""One program a row draws: by the inverse CDF, in vocabulary order."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from plait_kernels.sampling import SamplingTensors
from plait_kernels.sampling.triton_candidates import border, candidates, gather, is_kept
from plait_kernels.sampling.triton_ladder import LEVELS, Counted, rung_of
from plait_kernels.sampling.triton_rows import Rows
from plait_kernels.sampling.triton_units import COLDEST, share_of, warm, weight
from plait_kernels.triton_math import MINUS_INFINITY, power_of_two


@triton.jit
def _draw(
    logits,
    best,
    best_ids,
    temperature,
    top_k,
    top_p,
    min_p,
    uniform,
    part_counts,
    part_masses,
    ids,
    out,
    vocab,
    stride,
    parts,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    top = tl.load(best + row)
    temper = tl.load(temperature + row)
    heat = warm(temper)
    k, p, least = tl.load(top_k + row), tl.load(top_p + row), tl.load(min_p + row)
    _rung_number, inside, total = rung_of(part_counts, part_masses, row, parts, k, p, least, PARTS)
    count = tl.sum(inside, axis=0)
    floor = tl.log(least)
    logits += row * stride
    ids += row * vocab
    nowhere = tl.full((), -2147483649, tl.int64)
    k_key, p_key = nowhere, nowhere
    k_id, p_id = tl.full((), 2147483647, tl.int32), tl.full((), 2147483647, tl.int32)
    if (k > 0) & (k < count):
        # Of what min-p leaves there may be fewer than k: then the border lies below all of it.
        k_key, k_id = border(logits, ids, count, top, heat, MINUS_INFINITY, nowhere, k_id, k, False, BLOCK)
    if p < 1.0:
        if (k > 0) | (least > 0.0):
            mass = tl.zeros((BLOCK,), tl.int64)
            for first in range(0, count, BLOCK):
                live, token, key, score = candidates(logits, ids, first, count, top, heat, BLOCK)
                kept = is_kept(live, token, key, score, floor, k_key, k_id, p_key, p_id)
                mass += tl.where(kept, weight(score), 0)
            total = tl.sum(mass, axis=0)
        p_key, p_id = border(logits, ids, count, top, heat, floor, k_key, k_id, share_of(total, p), True, BLOCK)
    mass = tl.zeros((BLOCK,), tl.int64)
    for first in range(0, count, BLOCK):
        live, token, key, score = candidates(logits, ids, first, count, top, heat, BLOCK)
        kept = is_kept(live, token, key, score, floor, k_key, k_id, p_key, p_id)
        mass += tl.where(kept, weight(score), 0)
    total = tl.sum(mass, axis=0)
    # The first token whose running sum passes uniform * total, which may round up to the total itself.
    target = tl.minimum((tl.load(uniform + row) * total.to(tl.float64)).to(tl.int64), total - 1)
    passed = tl.full((), 0, tl.int64)
    drawn = tl.full((), 2147483647, tl.int32)
    for first in range(0, count, BLOCK):
        live, token, key, score = candidates(logits, ids, first, count, top, heat, BLOCK)
        kept = is_kept(live, token, key, score, floor, k_key, k_id, p_key, p_id)
        each = tl.where(kept, weight(score), 0)
        sums = passed + tl.cumsum(each, 0)
        drawn = tl.minimum(drawn, tl.min(tl.where(kept & (sums > target), token, 2147483647), axis=0))
        passed += tl.sum(each, axis=0)
    greedy = tl.load(best_ids + row)
    tl.store(out + row, tl.where(temper < COLDEST, greedy, drawn.to(tl.int64)))


@triton.jit
def _draw_from_all(
    logits,
    best,
    best_ids,
    temperature,
    uniform,
    part_masses,
    out,
    vocab,
    stride,
    parts,
    PARTS: tl.constexpr,
    PART: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Where nothing is limited: find the part by its mass, then the token in it."""
    row = tl.program_id(0).to(tl.int64)
    top = tl.load(best + row)
    temper = tl.load(temperature + row)
    heat = warm(temper)
    part = tl.arange(0, PARTS)
    last: tl.constexpr = LEVELS - 1
    mass = tl.load(part_masses + (row * parts + part) * LEVELS + last, mask=part < parts, other=0)
    total = tl.sum(mass, axis=0)
    target = tl.minimum((tl.load(uniform + row) * total.to(tl.float64)).to(tl.int64), total - 1)
    mine = tl.min(tl.where(tl.cumsum(mass, 0) > target, part, PARTS), axis=0)
    passed = tl.sum(tl.where(part < mine, mass, 0), axis=0)
    drawn = tl.full((), 2147483647, tl.int32)
    begin = mine * PART
    for first in range(begin, tl.minimum(begin + PART, vocab), BLOCK):
        at = first + tl.arange(0, BLOCK)
        x = tl.load(logits + row * stride + at, mask=at < vocab, other=MINUS_INFINITY)
        each = tl.where(at < vocab, weight((x - top) / heat), 0)
        sums = passed + tl.cumsum(each, 0)
        drawn = tl.minimum(drawn, tl.min(tl.where(sums > target, at, 2147483647), axis=0))
        passed += tl.sum(each, axis=0)
    greedy = tl.load(best_ids + row)
    tl.store(out + row, tl.where(temper < COLDEST, greedy, drawn.to(tl.int64)))


def draw_from_all(rows: Rows, counted: Counted, params: SamplingTensors) -> Tensor:
    """int64 ``[R]``, where no row has a limit."""
    out = torch.empty_like(rows.best_ids)
    _draw_from_all[(len(out),)](
        rows.logits,
        rows.best,
        rows.best_ids,
        params.temperature,
        params.uniform,
        counted.masses,
        out,
        rows.logits.shape[1],
        rows.logits.stride(0),
        rows.parts,
        PARTS=power_of_two(rows.parts),
        PART=rows.part,
        BLOCK=rows.block,
        num_warps=4,
    )
    return out


def draw_within_limits(rows: Rows, counted: Counted, params: SamplingTensors) -> Tensor:
    """int64 ``[R]``."""
    ids = gather(rows, counted, params.temperature, params.top_k, params.top_p, params.min_p)
    out = torch.empty_like(rows.best_ids)
    _draw[(len(out),)](
        rows.logits,
        rows.best,
        rows.best_ids,
        params.temperature,
        params.top_k,
        params.top_p,
        params.min_p,
        params.uniform,
        counted.counts,
        counted.masses,
        ids,
        out,
        rows.logits.shape[1],
        rows.logits.stride(0),
        rows.parts,
        PARTS=power_of_two(rows.parts),
        BLOCK=rows.block,
        num_warps=8,
    )
    return out
