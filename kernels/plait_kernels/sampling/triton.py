# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
"""The sampler as Triton kernels, without sorting a vocabulary.

A row is cut into parts of fixed length, so how a row is summed depends on nothing but its length. Best of each row;
then for a ladder of distances below the best, how many tokens and how much probability lie within; then the ids of
those within the rung that surely holds all that can be kept, in vocabulary order; and one program a row that finds the
exact borders among these few by bisection, and draws. Probabilities are integers, in units of 2^-40 of the best
token's: sums are exact, in whatever order they are taken.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from plait_kernels.sampling import GREEDY_BELOW, Logprobs, SamplingTensors
from plait_kernels.sampling.reference import penalise
from plait_kernels.triton_math import COUNTERS, MINUS_INFINITY, arrive, counters, power_of_two

__all__ = ["logprobs", "penalise", "sample"]
"""``penalise`` stays scattered writes in PyTorch: it touches a few entries."""

PART = 16384
"""Tokens of a part of a row; a multiple of ``BLOCK``."""
BLOCK = 1024
LEVELS = tl.constexpr(16)
UNIT = tl.constexpr(float(1 << 40))
COLDEST = tl.constexpr(GREEDY_BELOW)


@triton.jit
def _key(x):
    """fp32 to int64, in the same order; equal numbers have equal keys, 0 and -0 too."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64)


@triton.jit
def _weight(score):
    """Probability relative to the best token's, whose score is 0, in units."""
    return (tl.exp(score) * UNIT).to(tl.int64)


@triton.jit
def _ladder():
    """Distances below the best score, fp32 ``[LEVELS]``; the last is everything."""
    level = tl.arange(0, LEVELS)
    return tl.where(level == LEVELS - 1, float("inf"), 0.25 * tl.exp2(0.6 * level.to(tl.float32)))


@triton.jit
def _warm(temperature):
    """Greedy rows are computed like the others, at 1, and their draw is thrown away."""
    return tl.where(temperature < COLDEST, 1.0, temperature)


@triton.jit
def _best(
    logits,
    values,
    ids,
    part_values,
    part_ids,
    done,
    vocab,
    stride,
    PARTS: tl.constexpr,
    PART: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The best logit of each row and its lowest id; the last part of a row to finish compares the parts."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    lane = tl.arange(0, BLOCK)
    begin = part * PART
    best = tl.full((BLOCK,), MINUS_INFINITY, tl.float32)
    where = begin + lane
    for first in range(begin, tl.minimum(begin + PART, vocab), BLOCK):
        at = first + lane
        x = tl.load(logits + row * stride + at, mask=at < vocab, other=MINUS_INFINITY)
        where = tl.where(x > best, at, where)
        best = tl.maximum(x, best)
    top = tl.max(best, axis=0)
    token = tl.min(tl.where(best == top, where, vocab), axis=0)
    parts = tl.num_programs(1)
    tl.store(part_values + row * parts + part, top)
    tl.store(part_ids + row * parts + part, token)
    if arrive(done + row, parts):
        at = tl.arange(0, PARTS)
        others = tl.load(part_values + row * parts + at, mask=at < parts, other=MINUS_INFINITY, cache_modifier=".cg")
        tokens = tl.load(part_ids + row * parts + at, mask=at < parts, other=vocab, cache_modifier=".cg")
        top = tl.max(others, axis=0)
        tl.store(values + row, top)
        tl.store(ids + row, tl.min(tl.where(others == top, tokens, vocab), axis=0).to(tl.int64))


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
    heat = _warm(tl.load(temperature + row))
    rungs = _ladder()
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
        masses += tl.where(within, _weight(score)[None, :], 0)
        if RANKED:
            above += (x > mark).to(tl.int32)
    at = (row * tl.num_programs(1) + part) * LEVELS + tl.arange(0, LEVELS)
    tl.store(part_counts + at, tl.sum(counts, axis=1))
    tl.store(part_masses + at, tl.sum(masses, axis=1))
    if RANKED:
        tl.store(part_ranks + row * tl.num_programs(1) + part, tl.sum(above, axis=0))


@triton.jit
def _share(total, p):
    """The least whole mass that is not below ``p * total``."""
    return tl.ceil(total.to(tl.float64) * p.to(tl.float64)).to(tl.int64)


@triton.jit
def _rung(part_counts, part_masses, row, parts, k, p, min_p, PARTS: tl.constexpr):
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
    by_floor = tl.min(tl.where(_ladder() >= reach, level, last), axis=0)
    # top-p counts what top-k and min-p left: only where neither is set is its share of the whole row's mass.
    share = tl.where((k == 0) & (min_p == 0.0) & (p < 1.0), _share(total, p), 1 << 62)
    by_mass = tl.min(tl.where(masses >= share, level, last), axis=0)
    rung = tl.minimum(tl.minimum(by_count, by_floor), by_mass)
    inside = tl.sum(tl.where(level[None, :] == rung, counts, 0), axis=1)
    return rung, inside, total


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
    heat = _warm(tl.load(temperature + row))
    parts = tl.num_programs(1)
    k, p, floor = tl.load(top_k + row), tl.load(top_p + row), tl.load(min_p + row)
    rung, inside, _ = _rung(part_counts, part_masses, row, parts, k, p, floor, PARTS)
    reach = tl.sum(tl.where(tl.arange(0, LEVELS) == rung, _ladder(), 0.0), axis=0)
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
def _tokens(logits, ids, first, count, top, heat, BLOCK: tl.constexpr):
    """A block of candidates: (live, id, key, score)."""
    at = first + tl.arange(0, BLOCK)
    live = at < count
    token = tl.load(ids + at, mask=live, other=0)
    x = tl.load(logits + token, mask=live, other=MINUS_INFINITY)
    return live, token, _key(x), (x - top) / heat


@triton.jit
def _is_kept(live, token, key, score, floor, k_key, k_id, p_key, p_id):
    """Inside all borders; at a border, ids up to the border's own."""
    kept = live & (score >= floor)
    kept = kept & ((key > k_key) | ((key == k_key) & (token <= k_id)))
    return kept & ((key > p_key) | ((key == p_key) & (token <= p_id)))


@triton.jit
def _border(logits, ids, count, top, heat, floor, k_key, k_id, wanted, MASS: tl.constexpr, BLOCK: tl.constexpr):
    """The largest key such that tokens with this key or a larger one amount to ``wanted`` (tokens, or mass), and the
    id of the last of its equals that is needed for it. Only tokens inside ``floor`` and ``(k_key, k_id)`` count."""
    low = tl.full((), -2147483648, tl.int64)
    high = tl.full((), 2147483647, tl.int64)
    while low < high:
        middle = (low + high + 1) >> 1
        reached = tl.zeros((BLOCK,), tl.int64)
        for first in range(0, count, BLOCK):
            live, token, key, score = _tokens(logits, ids, first, count, top, heat, BLOCK)
            kept = _is_kept(live, token, key, score, floor, k_key, k_id, middle, 2147483647)
            reached += tl.where(kept, _weight(score) if MASS else 1, 0)
        enough = tl.sum(reached, axis=0) >= wanted
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle - 1)
    before = tl.zeros((BLOCK,), tl.int64)
    for first in range(0, count, BLOCK):
        live, token, key, score = _tokens(logits, ids, first, count, top, heat, BLOCK)
        kept = _is_kept(live, token, key, score, floor, k_key, k_id, low + 1, 2147483647)
        before += tl.where(kept, _weight(score) if MASS else 1, 0)
    reached = tl.sum(before, axis=0)
    last = tl.full((), -1, tl.int32)
    for first in range(0, count, BLOCK):
        live, token, key, score = _tokens(logits, ids, first, count, top, heat, BLOCK)
        equal = _is_kept(live, token, key, score, floor, k_key, k_id, low, 2147483647) & (key == low)
        each = tl.where(equal, _weight(score) if MASS else 1, 0).to(tl.int64)
        sums = reached + tl.cumsum(each, 0)
        needed = equal & (sums - each < wanted)
        last = tl.maximum(last, tl.max(tl.where(needed, token, -1), axis=0))
        reached += tl.sum(each, axis=0)
    return low, last


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
    heat = _warm(temper)
    k, p, least = tl.load(top_k + row), tl.load(top_p + row), tl.load(min_p + row)
    _rung_number, inside, total = _rung(part_counts, part_masses, row, parts, k, p, least, PARTS)
    count = tl.sum(inside, axis=0)
    floor = tl.log(least)
    logits += row * stride
    ids += row * vocab
    nowhere = tl.full((), -2147483649, tl.int64)
    k_key, p_key = nowhere, nowhere
    k_id, p_id = tl.full((), 2147483647, tl.int32), tl.full((), 2147483647, tl.int32)
    if (k > 0) & (k < count):
        # Of what min-p leaves there may be fewer than k: then the border lies below all of it.
        k_key, k_id = _border(logits, ids, count, top, heat, MINUS_INFINITY, nowhere, k_id, k, False, BLOCK)
    if p < 1.0:
        if (k > 0) | (least > 0.0):
            mass = tl.zeros((BLOCK,), tl.int64)
            for first in range(0, count, BLOCK):
                live, token, key, score = _tokens(logits, ids, first, count, top, heat, BLOCK)
                kept = _is_kept(live, token, key, score, floor, k_key, k_id, p_key, p_id)
                mass += tl.where(kept, _weight(score), 0)
            total = tl.sum(mass, axis=0)
        p_key, p_id = _border(logits, ids, count, top, heat, floor, k_key, k_id, _share(total, p), True, BLOCK)
    mass = tl.zeros((BLOCK,), tl.int64)
    for first in range(0, count, BLOCK):
        live, token, key, score = _tokens(logits, ids, first, count, top, heat, BLOCK)
        kept = _is_kept(live, token, key, score, floor, k_key, k_id, p_key, p_id)
        mass += tl.where(kept, _weight(score), 0)
    total = tl.sum(mass, axis=0)
    # The first token whose running sum passes uniform * total, which may round up to the total itself.
    target = tl.minimum((tl.load(uniform + row) * total.to(tl.float64)).to(tl.int64), total - 1)
    passed = tl.full((), 0, tl.int64)
    drawn = tl.full((), 2147483647, tl.int32)
    for first in range(0, count, BLOCK):
        live, token, key, score = _tokens(logits, ids, first, count, top, heat, BLOCK)
        kept = _is_kept(live, token, key, score, floor, k_key, k_id, p_key, p_id)
        each = tl.where(kept, _weight(score), 0)
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
    heat = _warm(temper)
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
        each = tl.where(at < vocab, _weight((x - top) / heat), 0)
        sums = passed + tl.cumsum(each, 0)
        drawn = tl.minimum(drawn, tl.min(tl.where(sums > target, at, 2147483647), axis=0))
        passed += tl.sum(each, axis=0)
    greedy = tl.load(best_ids + row)
    tl.store(out + row, tl.where(temper < COLDEST, greedy, drawn.to(tl.int64)))


@triton.jit(do_not_specialize=["wanted"])
def _list_best(
    logits,
    best,
    chosen,
    top_k,
    top_p,
    min_p,
    part_counts,
    part_masses,
    part_ranks,
    ids,
    chosen_out,
    ranks,
    top_ids,
    top,
    vocab,
    stride,
    parts,
    wanted,  # how many of the best
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The chosen token's log-probability and rank, and the best in order."""
    row = tl.program_id(0).to(tl.int64)
    highest = tl.load(best + row)
    k, p, least = tl.load(top_k + row), tl.load(top_p + row), tl.load(min_p + row)
    _rung_number, inside, total = _rung(part_counts, part_masses, row, parts, k, p, least, PARTS)
    count = tl.sum(inside, axis=0)
    logits += row * stride
    ids += row * vocab
    normaliser = highest + tl.log((total.to(tl.float64) / UNIT).to(tl.float32))
    tl.store(chosen_out + row, tl.load(logits + tl.load(chosen + row)) - normaliser)
    part = tl.arange(0, PARTS)
    above = tl.sum(tl.load(part_ranks + row * parts + part, mask=part < parts, other=0), axis=0)
    tl.store(ranks + row, (above + 1).to(tl.int64))
    below = tl.full((), 2147483648, tl.int64)
    after = tl.full((), -1, tl.int32)
    for place in range(wanted):
        found = tl.full((), -2147483649, tl.int64)
        found_id = tl.full((), 0, tl.int32)
        for first in range(0, count, BLOCK):
            live, token, key, _score = _tokens(logits, ids, first, count, highest, 1.0, BLOCK)
            behind = live & ((key < below) | ((key == below) & (token > after)))
            here = tl.max(tl.where(behind, key, -2147483649), axis=0)
            here_id = tl.min(tl.where(behind & (key == here), token, 2147483647), axis=0)
            found_id = tl.where(here > found, here_id, found_id)
            found = tl.maximum(found, here)
        tl.store(top_ids + row * wanted + place, found_id.to(tl.int64))
        tl.store(top + row * wanted + place, tl.load(logits + found_id) - normaliser)
        below, after = found, found_id


@dataclass(frozen=True)
class _Rows:
    """Logits with what every kernel asks first: the best of each row, fp32 ``[R]``, and its id, int64 ``[R]``."""

    logits: Tensor
    best: Tensor
    best_ids: Tensor

    @property
    def parts(self) -> int:
        return int(triton.cdiv(self.logits.shape[1], PART))

    @property
    def grid(self) -> tuple[int, int]:
        return len(self.logits), self.parts

    def new(self, dtype: torch.dtype, *shape: int) -> Tensor:
        return torch.empty(len(self.logits), *shape, dtype=dtype, device=self.logits.device)


def _ranked(logits: Tensor) -> _Rows:
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    device, (rows, vocab) = logits.device, logits.shape
    if rows > COUNTERS:
        raise ValueError(f"at most {COUNTERS} rows are sampled at once, not {rows}")
    found = _Rows(
        logits,
        torch.empty(rows, dtype=torch.float32, device=device),
        torch.empty(rows, dtype=torch.int64, device=device),
    )
    _best[found.grid](
        logits,
        found.best,
        found.best_ids,
        found.new(torch.float32, found.parts),
        found.new(torch.int32, found.parts),
        counters(device),
        vocab,
        logits.stride(0),
        PARTS=power_of_two(found.parts),
        PART=PART,
        BLOCK=BLOCK,
        num_warps=4,
    )
    return found


@dataclass(frozen=True)
class _Counted:
    counts: Tensor
    masses: Tensor
    ranks: Tensor


def _counted(rows: _Rows, temperature: Tensor, chosen: Tensor | None) -> _Counted:
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
        PART=PART,
        BLOCK=min(BLOCK, 512),  # a ladder of sums for each lane: more would not fit in registers
        num_warps=8,
    )
    return _Counted(counts, masses, ranks)


def _gathered(
    rows: _Rows, counted: _Counted, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor
) -> Tensor:
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
        PART=PART,
        BLOCK=BLOCK,
        num_warps=4,
    )
    return ids


def sample(logits: Tensor, params: SamplingTensors) -> Tensor:
    if not len(logits):
        return torch.empty(0, dtype=torch.int64, device=logits.device)
    rows = _ranked(logits)
    if params.all_greedy:
        return rows.best_ids
    counted = _counted(rows, params.temperature, None)
    out = torch.empty_like(rows.best_ids)
    vocab, stride, parts = rows.logits.shape[1], rows.logits.stride(0), rows.parts
    common = (rows.logits, rows.best, rows.best_ids, params.temperature)
    if params.unlimited:
        _draw_from_all[(len(logits),)](
            *common,
            params.uniform,
            counted.masses,
            out,
            vocab,
            stride,
            parts,
            PARTS=power_of_two(parts),
            PART=PART,
            BLOCK=BLOCK,
            num_warps=4,
        )
        return out
    ids = _gathered(rows, counted, params.temperature, params.top_k, params.top_p, params.min_p)
    _draw[(len(logits),)](
        *common,
        params.top_k,
        params.top_p,
        params.min_p,
        params.uniform,
        counted.counts,
        counted.masses,
        ids,
        out,
        vocab,
        stride,
        parts,
        PARTS=power_of_two(parts),
        BLOCK=BLOCK,
        num_warps=8,
    )
    return out


def logprobs(logits: Tensor, chosen: Tensor, k: int) -> Logprobs:
    rows, chosen = _ranked(logits), chosen.contiguous()
    found = Logprobs(
        rows.new(torch.float32), rows.new(torch.int64), rows.new(torch.int64, k), rows.new(torch.float32, k)
    )
    one = torch.ones_like(rows.best)
    counted = _counted(rows, one, chosen)
    # The rung that holds the k best; 1 where none is wanted, because 0 stands for no limit.
    wanted, none = torch.full_like(rows.best_ids, max(k, 1)), torch.zeros_like(rows.best)
    ids = _gathered(rows, counted, one, wanted, one, none)
    _list_best[(len(logits),)](
        rows.logits,
        rows.best,
        chosen,
        wanted,
        one,
        none,
        counted.counts,
        counted.masses,
        counted.ranks,
        ids,
        found.chosen,
        found.ranks,
        found.top_ids,
        found.top,
        rows.logits.shape[1],
        rows.logits.stride(0),
        rows.parts,
        k,
        PARTS=power_of_two(rows.parts),
        BLOCK=BLOCK,
        num_warps=4,
    )
    return found
