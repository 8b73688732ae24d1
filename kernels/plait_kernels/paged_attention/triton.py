# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
"""``paged_attention`` as Triton kernels.

Decodes: a program for each sequence, key head and part of the history (Dao et al. 2023, "Flash-Decoding"); all query
heads of a key head are rows of one product. The step's own key and value never make the detour over the page: the
program reads them as inputs, and one program of each sequence and head stores them.

Longer pieces: keys and values are stored first, then tiles of queries walk the pages. Where there are few tiles with
long histories, they are split like decodes.

Parts leave (maximum, sum, weighted values) in base 2; ``_combine`` joins them.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from plait_kernels.early_start import starts_early, wait_for_others
from plait_kernels.segments import Segments
from plait_kernels.storage import Pages
from plait_kernels.tables import query_tiles
from plait_kernels.triton_math import (
    LOG2_E,
    MINUS_INFINITY,
    TENSOR_CORE_ROWS,
    dense_last,
    dot,
    dot_precision,
    multiprocessors,
    power_of_two,
    tanh,
)
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
MOST_PARTS = 64
PARTS_TOGETHER = 16
LEAST_PART = 256
"""Keys that a part of a tile of longer pieces has at least, on average."""


@triton.jit
def _scores(raw, scale, softcap, CAPPED: tl.constexpr):
    """Logits times log2(e)."""
    scaled = raw * scale
    if CAPPED:
        scaled = softcap * tanh(scaled / softcap)
    return scaled * LOG2_E


@triton.jit(do_not_specialize_on_alignment=["table"])
def _attend(
    query,  # [M, D]
    seen_first,  # [M]: first position that each row sees
    seen_last,  # [M]: and the last one
    best,
    total,
    acc,
    begin,
    stop,
    table,
    k_head,  # the view at the key head
    v_head,
    k_page,
    k_entry,
    v_page,
    v_entry,
    key_dim,
    value_dim,
    scale,
    softcap,
    CAPPED: tl.constexpr,
    MASKED: tl.constexpr,
    PAGE: tl.constexpr,
    KEYS: tl.constexpr,
    D: tl.constexpr,
    DV: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Online softmax over positions ``[begin, stop)``; entries outside are not read. Unless ``MASKED``, every row
    sees all."""
    i = tl.arange(0, D)
    j = tl.arange(0, DV)
    for first in range(begin, stop, KEYS):
        at = first + tl.arange(0, KEYS)
        there = at < stop
        page = tl.load(table + at // PAGE, mask=there, other=0).to(tl.int64)
        entry = (at % PAGE).to(tl.int64)
        key = tl.load(
            k_head + (page * k_page + entry * k_entry)[:, None] + i[None, :],
            mask=there[:, None] & (i < key_dim)[None, :],
            other=0.0,
        )
        value = tl.load(
            v_head + (page * v_page + entry * v_entry)[:, None] + j[None, :],
            mask=there[:, None] & (j < value_dim)[None, :],
            other=0.0,
        )
        scores = _scores(dot(query, tl.trans(key).to(query.dtype), PRECISION), scale, softcap, CAPPED)
        seen = there[None, :]
        if MASKED:
            seen = seen & (at[None, :] <= seen_last[:, None]) & (at[None, :] >= seen_first[:, None])
        scores = tl.where(seen, scores, MINUS_INFINITY)
        higher = tl.maximum(best, tl.max(scores, axis=1))
        # A row that has seen nothing yet has no maximum; 0 keeps its weights at exp2(-inf).
        anchor = tl.where(higher == MINUS_INFINITY, 0.0, higher)
        weights = tl.exp2(scores - anchor[:, None])
        shrink = tl.exp2(best - anchor)
        total = total * shrink + tl.sum(weights, axis=1)
        acc = acc * shrink[:, None] + dot(weights.to(query.dtype), value.to(query.dtype), PRECISION)
        best = higher
    return best, total, acc


@triton.jit
def _with_sink(best, total, acc, sink):
    """The extra logit takes weight and gives no value."""
    higher = tl.maximum(best, sink)
    shrink = tl.exp2(best - higher)
    return total * shrink + tl.exp2(sink - higher), acc * shrink[:, None]


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
        best = _scores(product, scale, softcap, CAPPED)
        total = tl.full((M,), 1.0, tl.float32)
        acc += value.to(tl.float32)[None, :]
    best, total, acc = _attend(
        query, position, position, best, total, acc, begin, stop, table + row * table_stride,
        k_view + key_head * key_dim, v_view + key_head * value_dim, k_page, k_entry, v_page, v_entry,
        key_dim, value_dim, scale, softcap, CAPPED, False, PAGE, KEYS, D, DV, PRECISION,
    )  # fmt: skip
    inside = has_g[:, None] & has_j[None, :]
    if not MANY:
        if SINKS:
            sink = tl.load(sinks + head, mask=has_g, other=0.0).to(tl.float32) * LOG2_E
            total, acc = _with_sink(best, total, acc, sink)
        place = out + ((row * heads + head) * value_dim)[:, None] + j[None, :]
        tl.store(place, (acc / total[:, None]).to(out.dtype.element_ty), mask=inside)
    else:
        at = (part.to(tl.int64) * tl.num_programs(0) + row) * heads + head
        tl.store(part_best + at, best, mask=has_g)
        tl.store(part_total + at, total, mask=has_g)
        tl.store(part_acc + (at * value_dim)[:, None] + j[None, :], acc, mask=inside)


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


@triton.jit(do_not_specialize=["first"], do_not_specialize_on_alignment=["write_pages", "write_offsets"])
def _store(
    k,
    v,
    k_view,
    v_view,
    write_pages,
    write_offsets,
    first,
    keys,  # channels of a token: heads * dim
    values,
    key_dim,
    value_dim,
    k_token,
    k_head,
    v_token,
    v_head,
    k_page,
    k_entry,
    v_page,
    v_entry,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
):
    row = (first + tl.program_id(0)).to(tl.int64)
    page = tl.load(write_pages + row)
    entry = tl.load(write_offsets + row)
    i = tl.arange(0, KEYS)
    key = tl.load(k + row * k_token + (i // key_dim) * k_head + i % key_dim, mask=i < keys, other=0.0)
    tl.store(k_view + page * k_page + entry * k_entry + i, key.to(k_view.dtype.element_ty), mask=i < keys)
    j = tl.arange(0, VALUES)
    value = tl.load(v + row * v_token + (j // value_dim) * v_head + j % value_dim, mask=j < values, other=0.0)
    tl.store(v_view + page * v_page + entry * v_entry + j, value.to(v_view.dtype.element_ty), mask=j < values)


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
        best, total, acc = _attend(
            query, seen_first, position, best, total, acc, begin, middle, pages, k_view, v_view, k_page, k_entry,
            v_page, v_entry, key_dim, value_dim, scale, softcap, CAPPED, False, PAGE, KEYS, D, DV, PRECISION,
        )  # fmt: skip
    best, total, acc = _attend(
        query, seen_first, position, best, total, acc, middle, stop, pages, k_view, v_view, k_page, k_entry, v_page,
        v_entry, key_dim, value_dim, scale, softcap, CAPPED, True, PAGE, KEYS, D, DV, PRECISION,
    )  # fmt: skip
    inside = live[:, None] & (j < value_dim)[None, :]
    if not MANY:
        if SINKS:
            sink = tl.load(sinks + head, mask=live, other=0.0).to(tl.float32) * LOG2_E
            total, acc = _with_sink(best, total, acc, sink)
        place = out + ((token.to(tl.int64) * heads + head) * value_dim)[:, None] + j[None, :]
        total = tl.where(live, total, 1.0)
        tl.store(place, (acc / total[:, None]).to(out.dtype.element_ty), mask=inside)
    else:
        at = (part.to(tl.int64) * n_tokens + token - first_token) * heads + head
        tl.store(part_best + at, best, mask=live)
        tl.store(part_total + at, total, mask=live)
        tl.store(part_acc + (at * value_dim)[:, None] + j[None, :], acc, mask=inside)


@dataclass(frozen=True)
class _Call:
    q: Tensor
    k: Tensor
    v: Tensor
    k_view: Tensor
    v_view: Tensor
    pages: Pages
    segments: Segments
    scale: float
    window: int | None
    softcap: float | None
    sinks: Tensor | None
    out: Tensor

    @property
    def group(self) -> int:
        return self.q.shape[1] // self.k.shape[1]

    @property
    def page_strides(self) -> tuple[int, ...]:
        return (*self.k_view.stride()[:2], *self.v_view.stride()[:2])

    @property
    def rule(self) -> tuple[int, float, float]:
        return self.window or 0, self.scale, self.softcap or 1.0

    @property
    def flags(self) -> dict[str, Any]:
        return {
            "WINDOWED": self.window is not None,
            "CAPPED": self.softcap is not None,
            "SINKS": self.sinks is not None,
            "PAGE": self.pages.page_size,
            "D": power_of_two(self.q.shape[2], TENSOR_CORE_ROWS),
            "DV": power_of_two(self.v.shape[2], TENSOR_CORE_ROWS),
            "PRECISION": dot_precision(self.q.dtype),
        }

    def parts(self, count: int, tokens: int) -> tuple[Tensor, Tensor, Tensor]:
        if count == 1:
            return self.out, self.out, self.out
        heads, dim = self.q.shape[1], self.v.shape[2]
        best, total = (torch.empty(count, tokens, heads, dtype=torch.float32, device=self.q.device) for _ in range(2))
        return best, total, torch.empty(count, tokens, heads, dim, dtype=torch.float32, device=self.q.device)

    def combine(self, count: int, first: int, tokens: int, parts: tuple[Tensor, Tensor, Tensor]) -> None:
        if count > 1:
            _combine[(tokens, self.q.shape[1])](
                self.q if self.sinks is None else self.sinks,
                self.out[first:],
                *parts,
                count,
                tokens,
                self.v.shape[2],
                SINKS=self.sinks is not None,
                MOST=MOST_PARTS,
                TOGETHER=PARTS_TOGETHER,
                DV=power_of_two(self.v.shape[2]),
                num_warps=4,
                **starts_early(self.q.device),
            )


def paged_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    k_view: Tensor,
    v_view: Tensor,
    pages: Pages,
    segments: Segments,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    q, k, v = dense_last(q), dense_last(k), dense_last(v)
    out = torch.empty(*q.shape[:2], v.shape[2], dtype=q.dtype, device=q.device)
    call = _Call(q, k, v, k_view, v_view, pages, segments, scale, window, softcap, sinks, out)
    if segments.tokens > segments.decodes:
        _run_store(call)
    if segments.decodes:
        _run_decode(call)
    if segments.tokens > segments.decodes:
        _run_prefill(call)
    return out


def _parts(wanted: int) -> int:
    """Down to a power of two: few ways to add up the same history."""
    return 1 << max(1, wanted).bit_length() - 1


def _run_store(call: _Call) -> None:
    keys, values = call.k.shape[1] * call.k.shape[2], call.v.shape[1] * call.v.shape[2]
    first = call.segments.decodes
    _store[(call.segments.tokens - first,)](
        call.k,
        call.v,
        call.k_view,
        call.v_view,
        call.pages.write_pages,
        call.pages.write_offsets,
        first,
        keys,
        values,
        call.k.shape[2],
        call.v.shape[2],
        *call.k.stride()[:2],
        *call.v.stride()[:2],
        *call.page_strides,
        KEYS=power_of_two(keys),
        VALUES=power_of_two(values),
        num_warps=4,
    )


def _run_decode(call: _Call) -> None:
    rows, kv_heads, device = call.segments.decodes, call.k.shape[1], call.q.device
    config = dict(DECODE.config(device, bucket(rows), call.group, kv_heads, call.q.shape[2], call.window or 0))
    # From shapes alone: a captured graph is replayed for other lengths.
    wanted = config.pop("PROGRAMS") * multiprocessors(device) // (rows * kv_heads)
    width = call.pages.table.shape[1] * call.pages.page_size
    reach = width if call.window is None else min(width, call.window)
    count = _parts(min(wanted, MOST_PARTS, triton.cdiv(reach, config["KEYS"])))
    parts = call.parts(count, rows)
    _decode[(rows, kv_heads, count)](
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
        *parts,
        call.group,
        call.k.shape[2],
        call.v.shape[2],
        *call.q.stride()[:2],
        *call.k.stride()[:2],
        *call.v.stride()[:2],
        *call.page_strides,
        call.pages.table.stride(0),
        *call.rule,
        MANY=count > 1,
        M=power_of_two(call.group, TENSOR_CORE_ROWS),
        **call.flags,
        **config,
        **starts_early(device),
    )
    call.combine(count, 0, rows, parts)


def _run_prefill(call: _Call) -> None:
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
    count = _parts(min(2 * multiprocessors(device) // (len(tiles) * kv_heads), reach // LEAST_PART, MOST_PARTS))
    parts = call.parts(count, tokens)
    _prefill[(len(tiles), kv_heads, count)](
        call.q,
        call.k_view,
        call.v_view,
        call.pages.table,
        segments.starts,
        segments.lengths,
        tiles,
        call.q if call.sinks is None else call.sinks,
        call.out,
        *parts,
        segments.decodes,
        tokens,
        call.group,
        call.k.shape[2],
        call.v.shape[2],
        *call.q.stride()[:2],
        *call.page_strides,
        call.pages.table.stride(0),
        *call.rule,
        MANY=count > 1,
        GROUP=group,
        **call.flags,
        **config,
    )
    call.combine(count, segments.decodes, tokens, parts)
