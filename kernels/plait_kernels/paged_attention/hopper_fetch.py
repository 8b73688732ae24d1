# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
"""The warp that fetches: looks pages up, and brings tiles of keys and values with the copy engine.

A page of one head is fetched as blocks of 16 entries by 64 channels, 128 bytes a row: the widest swizzle. Blocks of the
same channels lie one after another, and so are what ``wgmma`` knows as a tile of all keys.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

PAGE = gl.constexpr(16)
BLOCK = gl.constexpr(64)
"""Channels of a block: 128 bytes."""


@gluon.jit
def _fetch_tile(desc, blocks, full, pages, tile, slot, first_page, end_page, channel, KEYS: gl.constexpr,
                DIM: gl.constexpr):  # fmt: skip
    """All blocks of one tile, signalled together."""
    COUNT: gl.constexpr = KEYS // PAGE
    CHUNKS: gl.constexpr = DIM // BLOCK
    barrier = full.index(slot)
    mbarrier.expect(barrier, KEYS * DIM * 2)
    for p in gl.static_range(COUNT):
        number = first_page + tile * COUNT + p
        granule = gl.load(pages + number, mask=number < end_page, other=-1)
        for c in gl.static_range(CHUNKS):
            block = blocks.index((slot * CHUNKS + c) * COUNT + p)
            tma.async_copy_global_to_shared(desc, [granule, 0, channel + c * BLOCK], barrier, block)


@gluon.jit
def fetch(fetched, paging, KEYS: gl.constexpr, DIM: gl.constexpr, STAGES: gl.constexpr):
    """Tiles in the order in which they are used: the keys of tile t + 1 before the values of tile t."""
    k_desc, v_desc, k_blocks, v_blocks, k_full, k_free, v_full, v_free = fetched
    pages, count, first_page, end_page, channel = paging
    for step in range(count + 1):
        if step < count:
            slot = step % STAGES
            mbarrier.wait(k_free.index(slot), ((step // STAGES) & 1) ^ 1)
            _fetch_tile(k_desc, k_blocks, k_full, pages, step, slot, first_page, end_page, channel, KEYS, DIM)
        if step > 0:
            tile = step - 1
            slot = tile % STAGES
            mbarrier.wait(v_free.index(slot), ((tile // STAGES) & 1) ^ 1)
            _fetch_tile(v_desc, v_blocks, v_full, pages, tile, slot, first_page, end_page, channel, KEYS, DIM)
