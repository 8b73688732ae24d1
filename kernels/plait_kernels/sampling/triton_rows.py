# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
"""Rows of logits with what every kernel asks first: the best of each.

A row is cut into parts of fixed length, so how a row is summed depends on nothing but its length.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from plait_kernels.triton_math import COUNTERS, MINUS_INFINITY, arrive, counters, power_of_two

PART = 16384
"""Tokens of a part of a row; a multiple of ``BLOCK``."""
BLOCK = 1024


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


@dataclass(frozen=True)
class Rows:
    """Logits with what every kernel asks first: the best of each row, fp32 ``[R]``, and its id, int64 ``[R]``."""

    logits: Tensor
    best: Tensor
    best_ids: Tensor

    @property
    def parts(self) -> int:
        return int(triton.cdiv(self.logits.shape[1], PART))

    @property
    def part(self) -> int:
        return PART

    @property
    def block(self) -> int:
        return BLOCK

    @property
    def grid(self) -> tuple[int, int]:
        return len(self.logits), self.parts

    def new(self, dtype: torch.dtype, *shape: int) -> Tensor:
        return torch.empty(len(self.logits), *shape, dtype=dtype, device=self.logits.device)


def ranked(logits: Tensor) -> Rows:
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    device, (rows, vocab) = logits.device, logits.shape
    if rows > COUNTERS:
        raise ValueError(f"at most {COUNTERS} rows are sampled at once, not {rows}")
    found = Rows(
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
        PART=found.part,
        BLOCK=found.block,
        num_warps=4,
    )
    return found
