# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
"""Attention of longer pieces: tiles of queries walk the pages. Where there are few tiles with long histories, they are
split like those of decodes."""

import torch
import triton
import triton.language as tl

from plait_kernels.paged_attention.call import Call
from plait_kernels.paged_attention.triton_parts import Parts
from plait_kernels.paged_attention.triton_softmax import attend, with_sink
from plait_kernels.tables import query_tiles
from plait_kernels.triton_math import LOG2_E, MINUS_INFINITY, multiprocessors, power_of_two
from plait_kernels.tuning import Tunable

PREFILL = Tunable(
    "attention_prefill",
    {"ROWS": 64, "KEYS": 32, "num_warps": 4, "num_stages": 2},
    tuple(
        {"ROWS": m, "KEYS": n, "num_warps": w, "num_stages": s}
        for m in (64, 128)
        for n in (32, 64, 128)
        for w in (4, 8)
        for s in (2, 3)
    ),
)
LEAST_PART = 256
"""Keys that a part of a tile of longer pieces has at least, on average."""


@triton.jit(
    do_not_specialize=["first_token", "n_tokens", "table_stride"],
    do_not_specialize_on_alignment=["table", "starts", "lengths", "tiles"],
)
def _prefill(
    q,
    k_view,
    v_view,
    table,
    starts,
    lengths,
    tiles,
    sinks,
    out,
    part_best,
    part_total,
    part_acc,
    first_token,  # of the flat batch that parts are counted from
    n_tokens,
    per_key,
    key_dim,
    value_dim,
    q_token,
    q_head,
    k_page,
    k_entry,
    v_page,
    v_entry,
    table_stride,
    window,
    scale,
    softcap,
    WINDOWED: tl.constexpr,
    CAPPED: tl.constexpr,
    SINKS: tl.constexpr,
    MANY: tl.constexpr,  # parts, as many as programs in the third direction
    PAGE: tl.constexpr,
    GROUP: tl.constexpr,  # query heads of a key head, up to a power of two
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    D: tl.constexpr,
    DV: tl.constexpr,
    PRECISION: tl.constexpr,
):
    tile = tl.program_id(0)
    key_head = tl.program_id(1)
    part = tl.program_id(2)
    heads = tl.num_programs(1) * per_key
    sequence = tl.load(tiles + tile * 2)
    first = tl.load(tiles + tile * 2 + 1)
    end = tl.load(starts + sequence + 1)
    row = tl.arange(0, ROWS)
    token = first + row // GROUP
    g = row % GROUP
    head = key_head * per_key + g
    live = (token < end) & (g < per_key)
    i = tl.arange(0, D)
    j = tl.arange(0, DV)
    query = tl.load(
        q + (token.to(tl.int64) * q_token + head * q_head)[:, None] + i[None, :],
        mask=live[:, None] & (i < key_dim)[None, :],
        other=0.0,
    )
    position = token - end + tl.load(lengths + sequence)
    seen_first = tl.maximum(position - window + 1, 0) if WINDOWED else tl.zeros_like(position)
    lowest = first - end + tl.load(lengths + sequence)
    last = tl.minimum(first + ROWS // GROUP, end) - 1 - end + tl.load(lengths + sequence)
    from_key = tl.maximum(lowest - window + 1, 0) if WINDOWED else 0
    share = tl.cdiv(tl.cdiv(last + 1 - from_key, tl.num_programs(2) if MANY else 1), KEYS) * KEYS
    begin = from_key + part * share
    stop = tl.minimum(begin + share, last + 1)

    best = tl.full((ROWS,), MINUS_INFINITY, tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    acc = tl.zeros((ROWS, DV), tl.float32)
    pages = table + sequence.to(tl.int64) * table_stride
    k_view += key_head * key_dim
    v_view += key_head * value_dim
    middle = begin
    if not WINDOWED:
        # All rows see what lies before the tile's first token: whole steps of it need no mask.
        middle = begin + tl.maximum(tl.minimum(lowest + 1, stop) - begin, 0) // KEYS * KEYS
        best, total, acc = attend(
            query, seen_first, position, best, total, acc, begin, middle, pages, k_view, v_view, k_page, k_entry,
            v_page, v_entry, key_dim, value_dim, scale, softcap, CAPPED, False, PAGE, KEYS, D, DV, PRECISION,
        )  # fmt: skip
    best, total, acc = attend(
        query, seen_first, position, best, total, acc, middle, stop, pages, k_view, v_view, k_page, k_entry, v_page,
        v_entry, key_dim, value_dim, scale, softcap, CAPPED, True, PAGE, KEYS, D, DV, PRECISION,
    )  # fmt: skip
    inside = live[:, None] & (j < value_dim)[None, :]
    if not MANY:
        if SINKS:
            sink = tl.load(sinks + head, mask=live, other=0.0).to(tl.float32) * LOG2_E
            total, acc = with_sink(best, total, acc, sink)
        place = out + ((token.to(tl.int64) * heads + head) * value_dim)[:, None] + j[None, :]
        total = tl.where(live, total, 1.0)
        tl.store(place, (acc / total[:, None]).to(out.dtype.element_ty), mask=inside)
    else:
        at = (part.to(tl.int64) * n_tokens + token - first_token) * heads + head
        tl.store(part_best + at, best, mask=live)
        tl.store(part_total + at, total, mask=live)
        tl.store(part_acc + (at * value_dim)[:, None] + j[None, :], acc, mask=inside)


def run_prefill(call: Call) -> None:
    segments, kv_heads, device = call.segments, call.k.shape[1], call.q.device
    config = dict(
        PREFILL.config(device, call.group, call.q.shape[2], int(call.q.dtype == torch.float32), call.window or 0)
    )
    group = power_of_two(call.group)
    config["ROWS"] = max(config["ROWS"], group)
    tiles = query_tiles(segments, config["ROWS"] // group)
    tokens = segments.tokens - segments.decodes
    longest = segments.longest
    reach = longest if call.window is None else min(longest, call.window + config["ROWS"])
    wanted = min(2 * multiprocessors(device) // (len(tiles) * kv_heads), reach // LEAST_PART)
    parts = Parts.of(call, wanted, segments.decodes, tokens)
    _prefill[(len(tiles), kv_heads, parts.count)](
        call.q,
        call.k_view,
        call.v_view,
        call.pages.table,
        segments.starts,
        segments.lengths,
        tiles,
        call.q if call.sinks is None else call.sinks,
        call.out,
        *parts.sums,
        segments.decodes,
        tokens,
        call.group,
        call.k.shape[2],
        call.v.shape[2],
        *call.q.stride()[:2],
        *call.page_strides,
        call.pages.table.stride(0),
        *call.rule,
        MANY=parts.count > 1,
        GROUP=group,
        **call.flags,
        **config,
    )
    parts.combine()
