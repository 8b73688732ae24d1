# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
"""Attention of decodes: a program for each sequence, key head and part of the history (Dao et al. 2023,
"Flash-Decoding"); all query heads of a key head are rows of one product.

The step's own key and value never make the detour over the page: the program reads them as inputs, and one program of
each sequence and head stores them.
"""

import triton
import triton.language as tl

from plait_kernels.early_start import starts_early, wait_for_others
from plait_kernels.paged_attention.call import Call
from plait_kernels.paged_attention.triton_parts import Parts
from plait_kernels.paged_attention.triton_softmax import attend, base2_scores, with_sink
from plait_kernels.triton_math import LOG2_E, MINUS_INFINITY, TENSOR_CORE_ROWS, multiprocessors, power_of_two
from plait_kernels.tuning import Tunable, bucket

DECODE = Tunable(
    "attention_decode",
    {"KEYS": 64, "PROGRAMS": 4, "num_warps": 4, "num_stages": 2},
    tuple(
        {"KEYS": n, "PROGRAMS": p, "num_warps": w, "num_stages": s}
        for n in (32, 64, 128)
        for p in (2, 4, 8)
        for w, s in ((2, 3), (4, 2), (4, 3), (8, 2))
    ),
)
"""``PROGRAMS``: how many programs for each multiprocessor the history is split into, if sequences alone are too few."""


@triton.jit(
    do_not_specialize=["table_stride"],
    do_not_specialize_on_alignment=["table", "lengths", "write_pages", "write_offsets"],
)
def _decode(
    q,
    k,
    v,
    k_view,
    v_view,
    table,
    lengths,
    write_pages,
    write_offsets,
    sinks,
    out,
    part_best,  # fp32 [parts, tokens, hq]
    part_total,
    part_acc,  # fp32 [parts, tokens, hq, dv]
    per_key,
    key_dim,
    value_dim,
    q_token,
    q_head,
    k_token,
    k_head,
    v_token,
    v_head,
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
    M: tl.constexpr,
    KEYS: tl.constexpr,
    D: tl.constexpr,
    DV: tl.constexpr,
    PRECISION: tl.constexpr,
    EARLY: tl.constexpr,
):
    wait_for_others(EARLY)
    row = tl.program_id(0).to(tl.int64)
    key_head = tl.program_id(1)
    part = tl.program_id(2)
    heads = tl.num_programs(1) * per_key
    g = tl.arange(0, M)
    i = tl.arange(0, D)
    j = tl.arange(0, DV)
    head = key_head * per_key + g
    has_g, has_i, has_j = g < per_key, i < key_dim, j < value_dim

    query = tl.load(
        q + row * q_token + (head * q_head)[:, None] + i[None, :], mask=has_g[:, None] & has_i[None, :], other=0.0
    )
    position = tl.load(lengths + row) - 1
    seen_from = tl.maximum(position - window + 1, 0) if WINDOWED else 0
    share = tl.cdiv(tl.cdiv(position - seen_from, tl.num_programs(2) if MANY else 1), KEYS) * KEYS
    begin = seen_from + part * share
    stop = tl.minimum(begin + share, position)

    best = tl.full((M,), MINUS_INFINITY, tl.float32)
    total = tl.zeros((M,), tl.float32)
    acc = tl.zeros((M, DV), tl.float32)
    if part == 0:
        key = tl.load(k + row * k_token + key_head * k_head + i, mask=has_i, other=0.0).to(k_view.dtype.element_ty)
        value = tl.load(v + row * v_token + key_head * v_head + j, mask=has_j, other=0.0).to(v_view.dtype.element_ty)
        page = tl.load(write_pages + row)
        entry = tl.load(write_offsets + row)
        tl.store(k_view + page * k_page + entry * k_entry + key_head * key_dim + i, key, mask=has_i)
        tl.store(v_view + page * v_page + entry * v_entry + key_head * value_dim + j, value, mask=has_j)
        product = tl.sum(query.to(tl.float32) * key.to(tl.float32)[None, :], axis=1)
        best = base2_scores(product, scale, softcap, CAPPED)
        total = tl.full((M,), 1.0, tl.float32)
        acc += value.to(tl.float32)[None, :]
    best, total, acc = attend(
        query, position, position, best, total, acc, begin, stop, table + row * table_stride,
        k_view + key_head * key_dim, v_view + key_head * value_dim, k_page, k_entry, v_page, v_entry,
        key_dim, value_dim, scale, softcap, CAPPED, False, PAGE, KEYS, D, DV, PRECISION,
    )  # fmt: skip
    inside = has_g[:, None] & has_j[None, :]
    if not MANY:
        if SINKS:
            sink = tl.load(sinks + head, mask=has_g, other=0.0).to(tl.float32) * LOG2_E
            total, acc = with_sink(best, total, acc, sink)
        place = out + ((row * heads + head) * value_dim)[:, None] + j[None, :]
        tl.store(place, (acc / total[:, None]).to(out.dtype.element_ty), mask=inside)
    else:
        at = (part.to(tl.int64) * tl.num_programs(0) + row) * heads + head
        tl.store(part_best + at, best, mask=has_g)
        tl.store(part_total + at, total, mask=has_g)
        tl.store(part_acc + (at * value_dim)[:, None] + j[None, :], acc, mask=inside)


def run_decode(call: Call) -> None:
    rows, kv_heads, device = call.segments.decodes, call.k.shape[1], call.q.device
    config = dict(DECODE.config(device, bucket(rows), call.group, kv_heads, call.q.shape[2], call.window or 0))
    # From shapes alone: a captured graph is replayed for other lengths.
    wanted = config.pop("PROGRAMS") * multiprocessors(device) // (rows * kv_heads)
    width = call.pages.table.shape[1] * call.pages.page_size
    reach = width if call.window is None else min(width, call.window)
    parts = Parts.of(call, min(wanted, triton.cdiv(reach, config["KEYS"])), 0, rows)
    _decode[(rows, kv_heads, parts.count)](
        call.q,
        call.k,
        call.v,
        call.k_view,
        call.v_view,
        call.pages.table,
        call.segments.lengths,
        call.pages.write_pages,
        call.pages.write_offsets,
        call.q if call.sinks is None else call.sinks,
        call.out,
        *parts.sums,
        call.group,
        call.k.shape[2],
        call.v.shape[2],
        *call.q.stride()[:2],
        *call.k.stride()[:2],
        *call.v.stride()[:2],
        *call.page_strides,
        call.pages.table.stride(0),
        *call.rule,
        MANY=parts.count > 1,
        M=power_of_two(call.group, TENSOR_CORE_ROWS),
        **call.flags,
        **config,
        **starts_early(device),
    )
    parts.combine()
