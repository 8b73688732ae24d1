# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
"""``moe`` as Triton kernels: (token, expert) pairs sorted by expert, and two grouped products over blocks of them.

Which expert a block belongs to is worked out on the device, so nothing waits for the host and a graph can be
captured: there are as many blocks as there could be, and those beyond the last pair end at once.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from plait_kernels.gated_activation import Kind
from plait_kernels.triton_math import (
    TENSOR_CORE_ROWS,
    dense_last,
    dot,
    dot_precision,
    gelu_tanh,
    power_of_two,
    silu,
)
from plait_kernels.tuning import Tunable, bucket

PRODUCT = Tunable(
    "moe_product",
    {"ROWS": 16, "OUTS": 64, "INS": 64, "num_warps": 4, "num_stages": 3},
    tuple(
        {"ROWS": m, "OUTS": o, "INS": i, "num_warps": w, "num_stages": 3}
        for m in (16, 32, 64, 128)
        for o in (64, 128)
        for i in (64, 128)
        for w in (4, 8)
    ),
)


@triton.jit(do_not_specialize_on_alignment=["blocks"])
def _gate_up(
    x,
    weight,
    hidden,
    order,
    blocks,
    ins,
    outs,
    choices,
    x_stride,
    SILU: tl.constexpr,
    ROWS: tl.constexpr,
    OUTS: tl.constexpr,
    INS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """``act(gate x) * up x`` of a block of pairs of one expert, in sorted order."""
    block = tl.program_id(0)
    expert = tl.load(blocks + block * 3).to(tl.int64)
    pair = tl.load(blocks + block * 3 + 1) + tl.arange(0, ROWS)
    live = pair < tl.load(blocks + block * 3 + 2)
    if tl.load(blocks + block * 3 + 1) < tl.load(blocks + block * 3 + 2):
        token = tl.load(order + pair, mask=live, other=0) // choices
        o = tl.program_id(1) * OUTS + tl.arange(0, OUTS)
        has_o = o < outs
        line = weight + expert * 2 * outs * ins
        gate = tl.zeros((ROWS, OUTS), tl.float32)
        up = tl.zeros((ROWS, OUTS), tl.float32)
        for first in range(0, ins, INS):
            i = first + tl.arange(0, INS)
            value = tl.load(
                x + (token * x_stride)[:, None] + i[None, :], mask=live[:, None] & (i < ins)[None, :], other=0.0
            )
            mask = has_o[:, None] & (i < ins)[None, :]
            w = tl.load(line + (o * ins)[:, None] + i[None, :], mask=mask, other=0.0)
            gate += dot(value, tl.trans(w), PRECISION)
            w = tl.load(line + ((outs + o) * ins)[:, None] + i[None, :], mask=mask, other=0.0)
            up += dot(value, tl.trans(w), PRECISION)
        gate = silu(gate) if SILU else gelu_tanh(gate)
        place = hidden + (pair.to(tl.int64) * outs)[:, None] + o[None, :]
        tl.store(place, (gate * up).to(hidden.dtype.element_ty), mask=live[:, None] & has_o[None, :])


@triton.jit(do_not_specialize_on_alignment=["blocks"])
def _down(
    hidden,
    weight,
    parts,
    order,
    blocks,
    ins,
    outs,
    ROWS: tl.constexpr,
    OUTS: tl.constexpr,
    INS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """``down h`` of a block of pairs, back in the order of the pairs; fp32."""
    block = tl.program_id(0)
    expert = tl.load(blocks + block * 3).to(tl.int64)
    pair = tl.load(blocks + block * 3 + 1) + tl.arange(0, ROWS)
    live = pair < tl.load(blocks + block * 3 + 2)
    if tl.load(blocks + block * 3 + 1) < tl.load(blocks + block * 3 + 2):
        o = tl.program_id(1) * OUTS + tl.arange(0, OUTS)
        has_o = o < outs
        acc = tl.zeros((ROWS, OUTS), tl.float32)
        for first in range(0, ins, INS):
            i = first + tl.arange(0, INS)
            value = tl.load(
                hidden + (pair.to(tl.int64) * ins)[:, None] + i[None, :],
                mask=live[:, None] & (i < ins)[None, :],
                other=0.0,
            )
            mask = has_o[:, None] & (i < ins)[None, :]
            w = tl.load(weight + expert * outs * ins + (o * ins)[:, None] + i[None, :], mask=mask, other=0.0)
            acc += dot(value, tl.trans(w), PRECISION)
        original = tl.load(order + pair, mask=live, other=0)
        place = parts + (original * outs)[:, None] + o[None, :]
        tl.store(place, acc, mask=live[:, None] & has_o[None, :])


@triton.jit
def _weighted_sum(parts, weights, out, n, choices, weights_stride, BLOCK: tl.constexpr):
    """In the order of the token's choices, so that no other token has a say in the rounding."""
    token = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for choice in range(choices):
        part = tl.load(parts + (token * choices + choice) * n + at, mask=at < n, other=0.0)
        total += part * tl.load(weights + token * weights_stride + choice)
    tl.store(out + token * n + at, total.to(out.dtype.element_ty), mask=at < n)


@dataclass(frozen=True)
class _Sorted:
    """``order`` int64 ``[pairs]``: which pair stands at each sorted place; ``blocks`` int32 ``[blocks, 3]``:
    (expert, first place, end)."""

    order: Tensor
    blocks: Tensor


def _sort(expert_ids: Tensor, experts: int, rows: int) -> _Sorted:
    ids = expert_ids.flatten()
    order = ids.argsort(stable=True)
    counts = torch.zeros(experts, dtype=torch.int64, device=ids.device).scatter_add_(0, ids, torch.ones_like(ids))
    ends = counts.cumsum(0)
    block_ends = ((counts + rows - 1) // rows).cumsum(0)
    most = min(len(ids), len(ids) // rows + experts)
    number = torch.arange(most, device=ids.device)
    expert = torch.searchsorted(block_ends, number, right=True)
    known = expert.clamp(max=experts - 1)
    within = number - (block_ends - (counts + rows - 1) // rows)[known]
    first = (ends - counts)[known] + within * rows
    end = torch.where(expert < experts, torch.minimum(first + rows, ends[known]), first)
    return _Sorted(order, torch.stack((known, first, end), dim=1).int())


def moe(
    x: Tensor,
    expert_ids: Tensor,
    expert_weights: Tensor,
    gate_up: Tensor,
    down: Tensor,
    *,
    activation: Kind,
) -> Tensor:
    tokens, n = x.shape
    experts, _, inner = down.shape
    choices, pairs = expert_ids.shape[1], expert_ids.numel()
    out = torch.empty(tokens, n, dtype=x.dtype, device=x.device)
    if not pairs:
        return out.zero_()
    x, weights = dense_last(x), dense_last(expert_weights.float())
    config = dict(PRODUCT.config(x.device, bucket(triton.cdiv(pairs, experts)), experts, inner, n))
    config["INS"] = max(TENSOR_CORE_ROWS, min(config["INS"], power_of_two(min(n, inner))))
    ordered = _sort(expert_ids, experts, config["ROWS"])
    hidden = torch.empty(pairs, inner, dtype=x.dtype, device=x.device)
    parts = torch.empty(pairs, n, dtype=torch.float32, device=x.device)
    precision = dot_precision(x.dtype)
    _gate_up[(len(ordered.blocks), triton.cdiv(inner, config["OUTS"]))](
        x,
        gate_up,
        hidden,
        ordered.order,
        ordered.blocks,
        n,
        inner,
        choices,
        x.stride(0),
        SILU=activation == "silu",
        PRECISION=precision,
        **config,
    )
    _down[(len(ordered.blocks), triton.cdiv(n, config["OUTS"]))](
        hidden, down, parts, ordered.order, ordered.blocks, inner, n, PRECISION=precision, **config
    )
    block = min(1024, power_of_two(n))
    _weighted_sum[(tokens, triton.cdiv(n, block))](
        parts, weights, out, n, choices, weights.stride(0), BLOCK=block, num_warps=4
    )
    return out
