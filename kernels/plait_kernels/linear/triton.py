# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
"""``linear`` for few rows as a Triton kernel that lives at memory bandwidth; more rows go to the library.

The weight is read once. Where the outputs alone make too few programs, the inputs are split too; the last program of a
stripe of outputs adds the parts in their order, so the result does not depend on which came first.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F

from plait_kernels.early_start import starts_early, wait_for_others
from plait_kernels.triton_math import (
    TENSOR_CORE_ROWS,
    arrive,
    counters,
    dense_last,
    dot,
    dot_precision,
    power_of_two,
)
from plait_kernels.tuning import Tunable, bucket

FEW = 64
"""Rows beyond which the library is asked at once: arithmetic begins to count."""

LINEAR = Tunable(
    "linear",
    {"LIBRARY": 0, "OUTS": 32, "INS": 128, "SPLIT": 1, "num_warps": 4, "num_stages": 4},
    (
        {"LIBRARY": 1},
        *(
            {"LIBRARY": 0, "OUTS": o, "INS": i, "SPLIT": s, "num_warps": w, "num_stages": g}
            for o, w in ((16, 2), (16, 4), (32, 4), (64, 4), (64, 8), (128, 8))
            for i, g in ((128, 4), (128, 6), (256, 3), (256, 4), (512, 3))
            for s in (1, 2, 4, 8)
            if o * i <= 1 << 14
        ),
    ),
)
"""``LIBRARY`` 1: the library is faster for this shape."""


@triton.jit(do_not_specialize=["rows"])
def _few_rows(
    x,
    weight,
    bias,
    out,
    parts,  # fp32 [SPLIT, rows, outs]
    done,
    rows,
    outs,
    ins,
    x_stride,
    weight_stride,
    BIASED: tl.constexpr,
    EVEN: tl.constexpr,  # ins is a multiple of SPLIT * INS
    M: tl.constexpr,
    OUTS: tl.constexpr,
    INS: tl.constexpr,
    SPLIT: tl.constexpr,
    PRECISION: tl.constexpr,
    EARLY: tl.constexpr,
):
    wait_for_others(EARLY)
    stripe = tl.program_id(0)
    part = tl.program_id(1)
    m = tl.arange(0, M)
    o = stripe * OUTS + tl.arange(0, OUTS)
    i = tl.arange(0, INS)
    share = tl.cdiv(tl.cdiv(ins, INS), SPLIT) * INS
    begin = part * share
    x_line = x + (m.to(tl.int64) * x_stride)[:, None] + i[None, :]
    weight_line = weight + (tl.minimum(o, outs - 1).to(tl.int64) * weight_stride)[:, None] + i[None, :]
    acc = tl.zeros((M, OUTS), tl.float32)
    for first in range(begin, tl.minimum(begin + share, ins), INS):
        if EVEN:
            w = tl.load(weight_line + first)
            value = tl.load(x_line + first, mask=(m < rows)[:, None], other=0.0)
        else:
            there = (first + i < ins)[None, :]
            w = tl.load(weight_line + first, mask=there, other=0.0)
            value = tl.load(x_line + first, mask=(m < rows)[:, None] & there, other=0.0)
        acc += dot(value, tl.trans(w), PRECISION)
    inside = (m < rows)[:, None] & (o < outs)[None, :]
    place = (m.to(tl.int64) * outs)[:, None] + o[None, :]
    if SPLIT > 1:
        tl.store(parts + part.to(tl.int64) * rows * outs + place, acc, mask=inside)
        if arrive(done + stripe, SPLIT):
            acc = tl.zeros((M, OUTS), tl.float32)
            for other in range(SPLIT):
                at = parts + tl.cast(other, tl.int64) * rows * outs + place
                acc += tl.load(at, mask=inside, other=0.0, cache_modifier=".cg")
            if BIASED:
                acc += tl.load(bias + o, mask=o < outs, other=0.0).to(tl.float32)[None, :]
            tl.store(out + place, acc.to(out.dtype.element_ty), mask=inside)
    else:
        if BIASED:
            acc += tl.load(bias + o, mask=o < outs, other=0.0).to(tl.float32)[None, :]
        tl.store(out + place, acc.to(out.dtype.element_ty), mask=inside)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, out_dtype: torch.dtype | None = None) -> Tensor:
    rows, outs, ins = len(x), *weight.shape
    config = (
        dict(LINEAR.config(x.device, bucket(max(rows, TENSOR_CORE_ROWS)), outs, ins))
        if 0 < rows <= FEW
        else {"LIBRARY": 1}
    )
    if config.pop("LIBRARY"):
        return _library(x, weight, bias, out_dtype)
    x, weight = dense_last(x), dense_last(weight)
    out = torch.empty(rows, outs, dtype=out_dtype or x.dtype, device=x.device)
    config["INS"] = min(config["INS"], power_of_two(ins, TENSOR_CORE_ROWS))
    split = config["SPLIT"] = min(config["SPLIT"], triton.cdiv(ins, config["INS"]))
    parts = out if split == 1 else torch.empty(split, rows, outs, dtype=torch.float32, device=x.device)
    _few_rows[(triton.cdiv(outs, config["OUTS"]), split)](
        x,
        weight,
        weight if bias is None else bias,
        out,
        parts,
        counters(x.device),
        rows,
        outs,
        ins,
        x.stride(0),
        weight.stride(0),
        BIASED=bias is not None,
        EVEN=ins % (split * config["INS"]) == 0,
        M=power_of_two(rows, TENSOR_CORE_ROWS),
        PRECISION=dot_precision(x.dtype),
        **config,
        **starts_early(x.device),
    )
    return out


def _library(x: Tensor, weight: Tensor, bias: Tensor | None, out_dtype: torch.dtype | None) -> Tensor:
    if out_dtype == torch.float32 and x.is_cuda and x.dtype != torch.float32 and len(x):
        out = torch.mm(x, weight.mT, out_dtype=torch.float32)  # no rounding in between
        return out if bias is None else out + bias
    out = F.linear(x, weight, bias)
    return out if out_dtype is None else out.to(out_dtype)
