# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
"""The states before all blocks, one after another."""

import triton
import triton.language as tl

from plait_kernels.early_start import wait_for_others
from plait_kernels.triton_math import onto


@triton.jit(do_not_specialize_on_alignment=["slots", "emits", "rows", "groups"])
def _ssd_states(
    x,
    b,
    logs,
    wholes,
    before,
    view,
    slots,
    emits,
    rows,
    groups,
    head_dim,
    state_dim,
    per_group,
    x_token,
    x_head,
    b_token,
    b_group,
    view_stride,
    EMITTING: tl.constexpr,
    BLOCK: tl.constexpr,
    P: tl.constexpr,
    ALL_N: tl.constexpr,
    N: tl.constexpr,
    KINDS: tl.constexpr,
    PRECISION: tl.constexpr,
    EARLY: tl.constexpr,
):
    """A program for each sequence, head and N of the state's columns walks the blocks: state before each, emitted ones,
    and the last one. The turned inputs are scaled in registers, as the left operand of the product."""
    wait_for_others(EARLY)
    group = tl.program_id(0)
    head = tl.program_id(1)
    heads = tl.num_programs(1)
    p = tl.arange(0, P)
    n = tl.program_id(2) * N + tl.arange(0, N)
    token = tl.arange(0, BLOCK)
    has_p, has_n = p < head_dim, n < state_dim
    inside = has_p[:, None] & has_n[None, :]
    tile = (head * head_dim + p)[:, None] * state_dim + n[None, :]
    own = view + tl.load(slots + tl.load(groups + group * 3 + 2)).to(tl.int64) * view_stride + tile
    state = tl.load(own, mask=inside, other=0.0).to(tl.float32)
    x += head.to(tl.int64) * x_head
    b += (head // per_group).to(tl.int64) * b_group
    kind: tl.constexpr = before.dtype.element_ty

    for row in range(tl.load(groups + group * 3), tl.load(groups + group * 3 + 1)):
        first = tl.load(rows + row * 5)
        stop = tl.load(rows + row * 5 + 1)
        block = tl.load(rows + row * 5 + 4)
        next_whole = tl.load(wholes + block * heads + head)
        for start in range(first, stop, BLOCK):
            at = (block + (start - first) // BLOCK).to(tl.int64) * heads + head
            whole = next_whole
            next_whole = tl.load(wholes + at + heads, mask=start + BLOCK < stop, other=0.0)
            tl.store(before + at * (P * ALL_N) + (p[:, None] * ALL_N + n[None, :]), state.to(kind))
            begin = tl.cast(start, tl.int64)
            behind = tl.load(logs + at * (KINDS * BLOCK) + token)
            read = tl.minimum(token, stop - start - 1)  # the last token again where there is none: it gets no weight
            of_x = x + begin * x_token + ((read * x_token)[None, :] + p[:, None])
            of_b = b + begin * b_token + ((read * b_token)[:, None] + n[None, :])
            turned = tl.load(of_x, mask=has_p[:, None], other=0.0)
            write = tl.load(of_b, mask=has_n[None, :], other=0.0)
            scaled = (turned.to(tl.float32) * behind[None, :]).to(kind)
            state = onto(state * whole, scaled, write, PRECISION)
        if EMITTING:
            chunk = tl.load(rows + row * 5 + 2)
            if chunk >= 0:
                target = tl.load(emits + chunk)
                if target >= 0:
                    place = view + target.to(tl.int64) * view_stride + tile
                    tl.store(place, state.to(view.dtype.element_ty), mask=inside)
    tl.store(own, state.to(view.dtype.element_ty), mask=inside)
