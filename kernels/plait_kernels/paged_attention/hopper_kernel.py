# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
"""Prefill attention for Hopper, in Gluon: one warp fetches, two or three groups of four warps compute.

A program serves a tile of query rows, (token, head of the group) pairs of one key head, 64 rows a group. The fetching
warp looks pages up and brings them with the copy engine into a ring of key tiles and one of value tiles; the groups
multiply with ``wgmma`` and keep the output in registers. Each group issues the scores of the next tile together with
the weighted values of this one, and takes the softmax of the next while the latter is still running (Shah et al. 2024,
"FlashAttention-3"); with ``TURNS`` groups take turns at issuing, so that one multiplies while another exponentiates.

Positions before the first one or behind the last one that a tile of rows sees may hold anything. Whole pages of them
are fetched from outside of the view, which the copy engine answers with zeros; in pages that they share with others,
scores are masked and values are overwritten with zeros.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from plait_kernels.paged_attention.hopper_compute import compute
from plait_kernels.paged_attention.hopper_fetch import BLOCK, PAGE, fetch

LOG2_E = gl.constexpr(1.4426950408889634)


@gluon.jit(
    do_not_specialize=["table_stride"],
    do_not_specialize_on_alignment=["table", "starts", "lengths", "tiles"],
)
def prefill(
    q,
    k_desc,  # [granules, 16, channels of all key heads]
    v_desc,
    table,
    starts,
    lengths,
    tiles,
    out,
    per_key,
    q_token,
    q_head,
    table_stride,
    window,
    scale,
    GROUPS: gl.constexpr,  # of 64 rows
    GROUP: gl.constexpr,  # query heads of a key head, up to a power of two
    KEYS: gl.constexpr,
    DIM: gl.constexpr,
    STAGES: gl.constexpr,
    WINDOWED: gl.constexpr,
    TURNS: gl.constexpr,
    FETCH_REGISTERS: gl.constexpr,
    COMPUTE_REGISTERS: gl.constexpr,
):
    DTYPE: gl.constexpr = q.dtype.element_ty
    ROWS: gl.constexpr = 64
    TOKENS: gl.constexpr = GROUPS * ROWS // GROUP
    COUNT: gl.constexpr = KEYS // PAGE * (DIM // BLOCK)
    TILE: gl.constexpr = gl.NVMMASharedLayout(128, 16, rank=2)
    tile = gl.program_id(0)
    key_head = gl.program_id(1)
    heads = gl.num_programs(1) * per_key
    sequence = gl.load(tiles + tile * 2)
    first_token = gl.load(tiles + tile * 2 + 1)
    end = gl.load(starts + sequence + 1)
    shift = gl.load(lengths + sequence) - end
    stop = gl.minimum(first_token + TOKENS, end) + shift
    begin = gl.maximum(first_token + shift - window + 1, 0) if WINDOWED else 0
    first_page = begin // PAGE
    origin = first_page * PAGE
    # At least one, even of a tile without rows: it finds zeros.
    count = gl.maximum(gl.cdiv(stop - origin, KEYS), 1)
    pages = table + sequence.to(gl.int64) * table_stride
    factor = scale * LOG2_E

    q_tiles = gl.allocate_shared_memory(DTYPE, [GROUPS, ROWS, DIM], TILE)
    k_blocks = gl.allocate_shared_memory(DTYPE, [STAGES * COUNT, 1, PAGE, BLOCK], k_desc.layout)
    v_blocks = gl.allocate_shared_memory(DTYPE, [STAGES * COUNT, 1, PAGE, BLOCK], v_desc.layout)
    k_tiles = k_blocks._reinterpret(DTYPE, [STAGES, KEYS, DIM], TILE)
    v_tiles = v_blocks._reinterpret(DTYPE, [STAGES, KEYS, DIM], TILE)
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    k_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    turns = gl.allocate_shared_memory(gl.int64, [GROUPS, 1], mbarrier.MBarrierLayout())
    for s in gl.static_range(STAGES):
        mbarrier.init(k_full.index(s), count=1)
        mbarrier.init(v_full.index(s), count=1)
        mbarrier.init(k_free.index(s), count=GROUPS)
        mbarrier.init(v_free.index(s), count=GROUPS)
    for g in gl.static_range(GROUPS):
        mbarrier.init(turns.index(g), count=1)
    fence_async_shared()

    ring = (k_tiles, v_tiles, v_blocks, k_full, k_free, v_full, v_free, turns)
    span = (count, origin, begin, stop, first_token, end, shift)
    given = (q, out, ring, span, (key_head, per_key, heads), (q_token, q_head), window, factor)
    fetched = (k_desc, v_desc, k_blocks, v_blocks, k_full, k_free, v_full, v_free)
    paging = (pages, count, first_page, gl.cdiv(stop, PAGE), key_head * DIM)
    RULE: gl.constexpr = (GROUPS, GROUP, KEYS, DIM, STAGES, WINDOWED, TURNS)
    if GROUPS == 2:
        gl.warp_specialize(
            [
                (compute, (q_tiles.index(0), given, 0, RULE)),
                (compute, (q_tiles.index(1), given, 1, RULE)),
                (fetch, (fetched, paging, KEYS, DIM, STAGES)),
            ],
            [4, 1],
            [COMPUTE_REGISTERS, FETCH_REGISTERS],
        )
    else:
        gl.warp_specialize(
            [
                (compute, (q_tiles.index(0), given, 0, RULE)),
                (compute, (q_tiles.index(1), given, 1, RULE)),
                (compute, (q_tiles.index(2), given, 2, RULE)),
                (fetch, (fetched, paging, KEYS, DIM, STAGES)),
            ],
            [4, 4, 1],
            [COMPUTE_REGISTERS, COMPUTE_REGISTERS, FETCH_REGISTERS],
        )
