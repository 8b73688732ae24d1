# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
"""Log-probabilities of chosen tokens and of the best ones, and ranks."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from plait_kernels.sampling import Logprobs
from plait_kernels.sampling.triton_candidates import candidates, gather
from plait_kernels.sampling.triton_ladder import count_rungs, rung_of
from plait_kernels.sampling.triton_rows import ranked
from plait_kernels.sampling.triton_units import UNIT
from plait_kernels.triton_math import power_of_two


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
    _rung_number, inside, total = rung_of(part_counts, part_masses, row, parts, k, p, least, PARTS)
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
            live, token, key, _score = candidates(logits, ids, first, count, highest, 1.0, BLOCK)
            behind = live & ((key < below) | ((key == below) & (token > after)))
            here = tl.max(tl.where(behind, key, -2147483649), axis=0)
            here_id = tl.min(tl.where(behind & (key == here), token, 2147483647), axis=0)
            found_id = tl.where(here > found, here_id, found_id)
            found = tl.maximum(found, here)
        tl.store(top_ids + row * wanted + place, found_id.to(tl.int64))
        tl.store(top + row * wanted + place, tl.load(logits + found_id) - normaliser)
        below, after = found, found_id


def logprobs(logits: Tensor, chosen: Tensor, k: int) -> Logprobs:
    rows, chosen = ranked(logits), chosen.contiguous()
    found = Logprobs(
        rows.new(torch.float32), rows.new(torch.int64), rows.new(torch.int64, k), rows.new(torch.float32, k)
    )
    one = torch.ones_like(rows.best)
    counted = count_rungs(rows, one, chosen)
    # The rung that holds the k best; 1 where none is wanted, because 0 stands for no limit.
    wanted, none = torch.full_like(rows.best_ids, max(k, 1)), torch.zeros_like(rows.best)
    ids = gather(rows, counted, one, wanted, one, none)
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
        BLOCK=rows.block,
        num_warps=4,
    )
    return found
