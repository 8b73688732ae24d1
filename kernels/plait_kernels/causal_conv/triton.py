# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
"""``causal_conv`` as Triton kernels: one step of every decode, and tiles of longer pieces.

Who touches a slot: of a decode, the program of its channels. Of a longer piece, only the program of the sequence's
first tile, which reads the old window, writes what is emitted, and the new window last. So no two programs of a
launch meet.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from plait_kernels.causal_conv import Activation
from plait_kernels.early_start import starts_early, wait_for_others
from plait_kernels.segments import Segments
from plait_kernels.storage import Slots
from plait_kernels.tables import query_tiles, scan_table
from plait_kernels.triton_math import power_of_two, rows_of, silu
from plait_kernels.tuning import Tunable, bucket

STEP = Tunable(
    "conv_step",
    {"BLOCK": 256, "num_warps": 2},
    tuple({"BLOCK": b, "num_warps": w} for b in (128, 256, 512, 1024) for w in (1, 2, 4)),
)
TILES = Tunable(
    "conv_tiles",
    {"TOKENS": 32, "BLOCK": 128, "num_warps": 4},
    tuple({"TOKENS": t, "BLOCK": b, "num_warps": w} for t in (16, 32, 64) for b in (64, 128, 256) for w in (4, 8)),
)


@triton.jit(do_not_specialize_on_alignment=["slots"])
def _conv_step(
    x,
    weight,
    bias,
    view,
    slots,
    out,
    channels,
    x_stride,
    view_stride,
    BIASED: tl.constexpr,
    SILU: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    wait_for_others(EARLY)
    row = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live = c < channels
    state = view + tl.load(slots + row).to(tl.int64) * view_stride + c * (WIDTH - 1)
    fresh = tl.load(x + row * x_stride + c, mask=live, other=0.0).to(view.dtype.element_ty)
    total = fresh.to(tl.float32) * tl.load(weight + c * WIDTH + WIDTH - 1, mask=live, other=0.0).to(tl.float32)
    if BIASED:
        total += tl.load(bias + c, mask=live, other=0.0).to(tl.float32)
    for j in tl.static_range(WIDTH - 1):
        old = tl.load(state + j, mask=live, other=0.0)
        total += old.to(tl.float32) * tl.load(weight + c * WIDTH + j, mask=live, other=0.0).to(tl.float32)
        if j > 0:
            tl.store(state + j - 1, old, mask=live)
    tl.store(state + WIDTH - 2, fresh, mask=live)
    tl.store(out + row * channels + c, (silu(total) if SILU else total).to(out.dtype.element_ty), mask=live)


@triton.jit
def _window(x, state, start, end, c, live, x_stride, j, WIDTH: tl.constexpr):
    """Entry j of the window behind token ``end - 1`` of a piece that begins at ``start``; ``state`` is before it."""
    at = end - (WIDTH - 1) + j
    new = tl.load(x + at.to(tl.int64) * x_stride + c, mask=live & (at >= start), other=0.0)
    old = tl.load(state + (WIDTH - 1) + at - start, mask=live & (at < start), other=0.0)
    return tl.where(at >= start, new.to(old.dtype), old)


@triton.jit(
    do_not_specialize=["n_groups"],
    do_not_specialize_on_alignment=["slots", "emits", "tiles", "rows", "groups", "starts"],
)
def _conv_tiles(
    x,
    weight,
    bias,
    view,
    slots,
    emits,
    tiles,
    rows,
    groups,
    starts,
    out,
    channels,
    n_groups,
    x_stride,
    view_stride,
    BIASED: tl.constexpr,
    SILU: tl.constexpr,
    EMITTING: tl.constexpr,
    WIDTH: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    tile = tl.program_id(0)
    sequence = tl.load(tiles + tile * 2)
    first = tl.load(tiles + tile * 2 + 1)
    start = tl.load(starts + sequence)
    end = tl.load(starts + sequence + 1)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live = c < channels
    t = first + tl.arange(0, TOKENS)
    state = view + tl.load(slots + sequence).to(tl.int64) * view_stride + c * (WIDTH - 1)

    total = tl.zeros((TOKENS, BLOCK), tl.float32)
    if BIASED:
        total += tl.load(bias + c, mask=live, other=0.0).to(tl.float32)[None, :]
    for j in tl.static_range(WIDTH):
        at = t - (WIDTH - 1) + j
        here = (at >= start) & (t < end)
        value = tl.load(
            x + (at.to(tl.int64) * x_stride)[:, None] + c[None, :], mask=here[:, None] & live[None, :], other=0.0
        ).to(view.dtype.element_ty)
        factor = tl.load(weight + c * WIDTH + j, mask=live, other=0.0).to(tl.float32)
        total += value.to(tl.float32) * factor[None, :]
        if first == start:
            before = (at < start)[:, None] & live[None, :]
            old = tl.load(state[None, :] + ((WIDTH - 1) + at - start)[:, None], mask=before, other=0.0)
            total += old.to(tl.float32) * factor[None, :]
    place = out + (t.to(tl.int64) * channels)[:, None] + c[None, :]
    value = silu(total) if SILU else total
    tl.store(place, value.to(out.dtype.element_ty), mask=(t < end)[:, None] & live[None, :])

    if first == start:
        if EMITTING:
            group = 0
            for g in range(n_groups):
                group = tl.where(tl.load(groups + g * 3 + 2) == sequence, g, group)
            for r in range(tl.load(groups + group * 3), tl.load(groups + group * 3 + 1)):
                target = tl.load(emits + tl.load(rows + r * 5 + 2))
                if target >= 0:
                    stop = tl.load(rows + r * 5 + 1)
                    copy = view + target.to(tl.int64) * view_stride + c * (WIDTH - 1)
                    for j in tl.static_range(WIDTH - 1):
                        tl.store(copy + j, _window(x, state, start, stop, c, live, x_stride, j, WIDTH), mask=live)
        # In order: entry j of the new window never needs an entry of the old one before j.
        for j in tl.static_range(WIDTH - 1):
            tl.store(state + j, _window(x, state, start, end, c, live, x_stride, j, WIDTH), mask=live)


def causal_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    view: Tensor,
    slots: Slots,
    segments: Segments,
    *,
    activation: Activation,
) -> Tensor:
    x, weight = rows_of(x), weight.contiguous()
    channels, width = weight.shape
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    flags = {"BIASED": bias is not None, "SILU": activation == "silu", "WIDTH": width}
    if segments.decodes:
        config = dict(STEP.config(x.device, bucket(segments.decodes), channels))
        config["BLOCK"] = min(config["BLOCK"], power_of_two(channels))
        _conv_step[(segments.decodes, triton.cdiv(channels, config["BLOCK"]))](
            x,
            weight,
            weight if bias is None else bias,
            view,
            slots.rows,
            out,
            channels,
            x.stride(0),
            view.stride(0),
            **flags,
            **config,
            **starts_early(x.device),
        )
    if segments.chunks:
        config = dict(TILES.config(x.device, channels))
        config["BLOCK"] = min(config["BLOCK"], power_of_two(channels))
        tiles = query_tiles(segments, config["TOKENS"])
        table = scan_table(segments, config["TOKENS"])
        _conv_tiles[(len(tiles), triton.cdiv(channels, config["BLOCK"]))](
            x,
            weight,
            weight if bias is None else bias,
            view,
            slots.rows,
            slots.rows if slots.emits is None else slots.emits,
            tiles,
            table.rows,
            table.groups,
            segments.starts,
            out,
            channels,
            len(table.groups),
            x.stride(0),
            view.stride(0),
            EMITTING=slots.emits is not None,
            **flags,
            **config,
        )
    return out
