# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
"""How many tokens and how much probability lie within each of a ladder of distances below the best token."""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from plait_kernels.sampling.triton_rows import Rows
from plait_kernels.sampling.triton_units import share_of, warm, weight
from plait_kernels.triton_math import MINUS_INFINITY

LEVELS = tl.constexpr(16)


@triton.jit
def ladder():
    """Distances below the best score, fp32 ``[LEVELS]``; the last is everything."""
    level = tl.arange(0, LEVELS)
    return tl.where(level == LEVELS - 1, float("inf"), 0.25 * tl.exp2(0.6 * level.to(tl.float32)))


@triton.jit
def _count(
    logits,
    best,
    temperature,
    chosen,
    part_counts,  # int32 [rows, parts, LEVELS]
    part_masses,  # int64 [rows, parts, LEVELS]
    part_ranks,  # int32 [rows, parts]
    vocab,
    stride,
    RANKED: tl.constexpr,
    PART: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """For each rung of the ladder, tokens and mass within; for log-probabilities also how many beat the chosen one."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    lane = tl.arange(0, BLOCK)
    top = tl.load(best + row)
    heat = warm(tl.load(temperature + row))
    rungs = ladder()
    counts = tl.zeros((LEVELS, BLOCK), tl.int32)
    masses = tl.zeros((LEVELS, BLOCK), tl.int64)
    above = tl.zeros((BLOCK,), tl.int32)
    if RANKED:
        mark = tl.load(logits + row * stride + tl.load(chosen + row))
    begin = part * PART
    for first in range(begin, tl.minimum(begin + PART, vocab), BLOCK):
        at = first + lane
        x = tl.load(logits + row * stride + at, mask=at < vocab, other=MINUS_INFINITY)
        score = (x - top) / heat
        within = (-score[None, :] <= rungs[:, None]) & (at < vocab)[None, :]
        counts += within.to(tl.int32)
        masses += tl.where(within, weight(score)[None, :], 0)
        if RANKED:
            above += (x > mark).to(tl.int32)
    at = (row * tl.num_programs(1) + part) * LEVELS + tl.arange(0, LEVELS)
    tl.store(part_counts + at, tl.sum(counts, axis=1))
    tl.store(part_masses + at, tl.sum(masses, axis=1))
    if RANKED:
        tl.store(part_ranks + row * tl.num_programs(1) + part, tl.sum(above, axis=0))


@triton.jit
def rung_of(part_counts, part_masses, row, parts, k, p, min_p, PARTS: tl.constexpr):
    """The first rung that surely holds every token that can be kept; ``(rung, tokens within each part, total
    mass)``."""
    part = tl.arange(0, PARTS)
    level = tl.arange(0, LEVELS)
    at = (row * parts + part)[:, None] * LEVELS + level[None, :]
    there = (part < parts)[:, None]
    counts = tl.load(part_counts + at, mask=there, other=0)
    masses = tl.sum(tl.load(part_masses + at, mask=there, other=0), axis=0)
    last: tl.constexpr = LEVELS - 1
    total = tl.sum(tl.where(level == last, masses, 0), axis=0)
    # What is not asked for is asked for without an end, which only the last rung has.
    tokens = tl.where(k > 0, k, 1 << 62)
    by_count = tl.min(tl.where(tl.sum(counts, axis=0) >= tokens, level, last), axis=0)
    reach = tl.where(min_p > 0.0, -tl.log(min_p), float("inf"))
    by_floor = tl.min(tl.where(ladder() >= reach, level, last), axis=0)
    # top-p counts what top-k and min-p left: only where neither is set is its share of the whole row's mass.
    share = tl.where((k == 0) & (min_p == 0.0) & (p < 1.0), share_of(total, p), 1 << 62)
    by_mass = tl.min(tl.where(masses >= share, level, last), axis=0)
    rung = tl.minimum(tl.minimum(by_count, by_floor), by_mass)
    inside = tl.sum(tl.where(level[None, :] == rung, counts, 0), axis=1)
    return rung, inside, total


@dataclass(frozen=True)
class Counted:
    counts: Tensor
    masses: Tensor
    ranks: Tensor


def count_rungs(rows: Rows, temperature: Tensor, chosen: Tensor | None) -> Counted:
    levels = int(LEVELS.value)
    counts = rows.new(torch.int32, rows.parts, levels)
    masses = rows.new(torch.int64, rows.parts, levels)
    ranks = rows.new(torch.int32, rows.parts)
    _count[rows.grid](
        rows.logits,
        rows.best,
        temperature,
        rows.best_ids if chosen is None else chosen,
        counts,
        masses,
        ranks,
        rows.logits.shape[1],
        rows.logits.stride(0),
        RANKED=chosen is not None,
        PART=rows.part,
        BLOCK=min(rows.block, 512),  # a ladder of sums for each lane: more would not fit in registers
        num_warps=8,
    )
    return Counted(counts, masses, ranks)
