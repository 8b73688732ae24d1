# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
"""Parts of a history that programs take side by side. Each leaves (maximum, sum, weighted values) in base 2, which a
last kernel joins."""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from plait_kernels.early_start import starts_early, wait_for_others
from plait_kernels.paged_attention.call import Call
from plait_kernels.triton_math import LOG2_E, MINUS_INFINITY, power_of_two

MOST_PARTS = 64
PARTS_TOGETHER = 16


@triton.jit(do_not_specialize=["parts", "tokens"])
def _combine(
    sinks,
    out,
    part_best,
    part_total,
    part_acc,
    parts,
    tokens,
    value_dim,
    SINKS: tl.constexpr,
    MOST: tl.constexpr,  # parts that there can be
    TOGETHER: tl.constexpr,  # parts that are read at a time
    DV: tl.constexpr,
    EARLY: tl.constexpr,
):
    wait_for_others(EARLY)
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    heads = tl.num_programs(1)
    j = tl.arange(0, DV)
    part = tl.arange(0, MOST)
    at = (part.to(tl.int64) * tokens + row) * heads + head
    bests = tl.load(part_best + at, mask=part < parts, other=MINUS_INFINITY)
    best = tl.max(bests, axis=0)
    if SINKS:
        sink = tl.load(sinks + head).to(tl.float32) * LOG2_E
        best = tl.maximum(best, sink)
    # A part that saw nothing has weight 0, and its sums are 0 too.
    anchor = tl.where(best == MINUS_INFINITY, 0.0, best)
    total = tl.sum(tl.load(part_total + at, mask=part < parts, other=0.0) * tl.exp2(bests - anchor), axis=0)
    if SINKS:  # takes weight and gives no value
        total += tl.exp2(sink - anchor)
    acc = tl.zeros((DV,), tl.float32)
    for first in range(0, parts, TOGETHER):
        some = first + tl.arange(0, TOGETHER)
        here = (some.to(tl.int64) * tokens + row) * heads + head
        weights = tl.exp2(tl.load(part_best + here, mask=some < parts, other=MINUS_INFINITY) - anchor)
        there = (some < parts)[:, None] & (j < value_dim)[None, :]
        values = tl.load(part_acc + (here * value_dim)[:, None] + j[None, :], mask=there, other=0.0)
        acc += tl.sum(values * weights[:, None], axis=0)
    tl.store(out + (row * heads + head) * value_dim + j, (acc / total).to(out.dtype.element_ty), mask=j < value_dim)


@dataclass(frozen=True)
class Parts:
    """``count`` parts of what a call's ``tokens`` tokens from ``first`` on attend to."""

    call: Call
    count: int
    first: int
    tokens: int
    sums: tuple[Tensor, Tensor, Tensor]
    """Maximum and sum, fp32 ``[count, tokens, hq]``, and weighted values, fp32 ``[count, tokens, hq, dv]``. One part
    leaves no such sums, but the result."""

    @classmethod
    def of(cls, call: Call, wanted: int, first: int, tokens: int) -> "Parts":
        """``wanted`` parts at most: a power of two, so that there are few ways to add up the same history."""
        count = 1 << max(1, min(wanted, MOST_PARTS)).bit_length() - 1
        if count == 1:
            return cls(call, 1, first, tokens, (call.out, call.out, call.out))
        heads, dim = call.q.shape[1], call.v.shape[2]
        best, total = (torch.empty(count, tokens, heads, dtype=torch.float32, device=call.q.device) for _ in range(2))
        acc = torch.empty(count, tokens, heads, dim, dtype=torch.float32, device=call.q.device)
        return cls(call, count, first, tokens, (best, total, acc))

    def combine(self) -> None:
        call = self.call
        if self.count > 1:
            _combine[(self.tokens, call.q.shape[1])](
                call.q if call.sinks is None else call.sinks,
                call.out[self.first :],
                *self.sums,
                self.count,
                self.tokens,
                call.v.shape[2],
                SINKS=call.sinks is not None,
                MOST=MOST_PARTS,
                TOGETHER=PARTS_TOGETHER,
                DV=power_of_two(call.v.shape[2]),
                num_warps=4,
                **starts_early(call.q.device),
            )
