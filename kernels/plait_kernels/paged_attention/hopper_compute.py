# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
"""A group of four warps that computes: 64 rows of queries against the tiles that are fetched."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from plait_kernels.paged_attention.hopper_fetch import BLOCK, PAGE

MINUS_INFINITY = gl.constexpr(float("-inf"))


@gluon.jit
def _zero_outside(v_blocks, slot, page, first, begin, stop, KEYS: gl.constexpr, DIM: gl.constexpr):
    """Zero values of a tile's page that lie outside positions ``[begin, stop)``. Every group does so: they write the
    same."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 1, 8], [1, 4, 8], [1, 4, 1], [2, 1, 0])
    COUNT: gl.constexpr = KEYS // PAGE
    CHUNKS: gl.constexpr = DIM // BLOCK
    entry = gl.arange(0, PAGE, gl.SliceLayout(0, gl.SliceLayout(2, LAYOUT)))
    at = gl.expand_dims(gl.expand_dims(first + page * PAGE + entry, 0), 2)
    for c in gl.static_range(CHUNKS):
        block = v_blocks.index((slot * CHUNKS + c) * COUNT + page)
        value = block.load(LAYOUT)
        inside, value = gl.broadcast((at >= begin) & (at < stop), value)
        block.store(gl.where(inside, value, gl.zeros_like(value)))


@gluon.jit
def _weigh(raw, best, total, factor, first, position, window, stop, lowest, highest, WINDOWED: gl.constexpr,
           LAYOUT: gl.constexpr, KEYS: gl.constexpr):  # fmt: skip
    """One step of the online softmax in base 2: (weights, maximum, sum, what to shrink earlier sums by).

    ``position`` of each row; positions that all rows of the group see lie in ``[lowest, highest]``.
    """
    masked = first + KEYS - 1 > highest
    if WINDOWED:
        masked = masked | (first < lowest)
    if masked:
        at = gl.expand_dims(first + gl.arange(0, KEYS, gl.SliceLayout(0, LAYOUT)), 0)
        seen = at <= gl.expand_dims(gl.minimum(position, stop - 1), 1)
        if WINDOWED:
            seen = seen & (at > gl.expand_dims(position - window, 1))
        raw = gl.where(seen, raw, MINUS_INFINITY)
    higher = gl.maximum(best, gl.max(raw, axis=1) * factor)
    # A row that has seen nothing yet has no maximum; 0 keeps its weights at exp2(-inf).
    anchor = gl.where(higher == MINUS_INFINITY, 0.0, higher)
    weights = gl.exp2(raw * factor - gl.expand_dims(anchor, 1))
    shrink = gl.exp2(best - anchor)
    return weights, higher, total * shrink + gl.sum(weights, axis=1), shrink


@gluon.jit
def _take_turn(turns, step, INDEX: gl.constexpr, TURNS: gl.constexpr):
    if TURNS:
        mbarrier.wait(turns.index(INDEX), (step & 1) ^ (1 if INDEX == 0 else 0))


@gluon.jit
def _pass_turn(turns, INDEX: gl.constexpr, GROUPS: gl.constexpr, TURNS: gl.constexpr):
    if TURNS:
        mbarrier.arrive(turns.index((INDEX + 1) % GROUPS), count=1)


@gluon.jit
def compute(q_tile, given, INDEX: gl.constexpr, RULE: gl.constexpr):
    """The rows of group ``INDEX``: 64 of the program's ``64 * GROUPS``. ``shift`` makes a flat token's position."""
    q, out, ring, span, heads_of, strides, window, factor = given
    k_tiles, v_tiles, v_blocks, k_full, k_free, v_full, v_free, turns = ring
    count, origin, begin, stop, first_token, end, shift = span
    key_head, per_key, heads = heads_of
    q_token, q_head = strides
    GROUPS: gl.constexpr = RULE[0]
    GROUP: gl.constexpr = RULE[1]
    KEYS: gl.constexpr = RULE[2]
    DIM: gl.constexpr = RULE[3]
    STAGES: gl.constexpr = RULE[4]
    WINDOWED: gl.constexpr = RULE[5]
    TURNS: gl.constexpr = RULE[6]
    ROWS: gl.constexpr = 64
    DTYPE: gl.constexpr = q.dtype.element_ty
    WIDE: gl.constexpr = gl.BlockedLayout([1, 8], [256 // DIM, DIM // 8], [4, 1], [1, 0])
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, KEYS, 16])
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, DIM, 16])
    WEIGHTS: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=SUMS, k_width=2)

    first_row = first_token + INDEX * (ROWS // GROUP)
    row = gl.arange(0, ROWS, gl.SliceLayout(1, WIDE))
    token = first_row + row // GROUP
    head = row % GROUP
    live = gl.expand_dims((token < end) & (head < per_key), 1)
    channel = gl.expand_dims(gl.arange(0, DIM, gl.SliceLayout(0, WIDE)), 0)
    place = token.to(gl.int64) * q_token + (key_head * per_key + head) * q_head
    q_tile.store(gl.load(q + (gl.expand_dims(place, 1) + channel), mask=live, other=0.0))
    fence_async_shared()
    gl.thread_barrier()

    position = first_row + shift + gl.arange(0, ROWS, gl.SliceLayout(1, SCORES)) // GROUP
    highest = gl.minimum(first_row + shift, stop - 1)
    lowest = first_row + shift + (ROWS - 1) // GROUP - window + 1

    best = gl.full([ROWS], MINUS_INFINITY, gl.float32, gl.SliceLayout(1, SCORES))
    total = gl.full([ROWS], 0.0, gl.float32, gl.SliceLayout(1, SCORES))
    nothing = gl.full([ROWS, KEYS], 0.0, gl.float32, SCORES)
    acc = gl.full([ROWS, DIM], 0.0, gl.float32, SUMS)

    mbarrier.wait(k_full.index(0), 0)
    raw = warpgroup_mma(q_tile, k_tiles.index(0).permute((1, 0)), nothing, use_acc=False, is_async=True)
    raw = warpgroup_mma_wait(0, deps=[raw])
    mbarrier.arrive(k_free.index(0), count=1)
    weights, best, total, shrink = _weigh(raw, best, total, factor, origin, position, window, stop, lowest, highest,
                                          WINDOWED, SCORES, KEYS)  # fmt: skip
    weights = gl.convert_layout(weights.to(DTYPE), WEIGHTS)

    if begin > origin:
        mbarrier.wait(v_full.index(0), 0)
        _zero_outside(v_blocks, 0, 0, origin, begin, stop, KEYS, DIM)
        fence_async_shared()
        gl.thread_barrier()

    mbarrier.wait(k_full.index(1 % STAGES), (1 // STAGES) & 1, pred=count > 1)
    for tile in range(1, count):
        slot = tile % STAGES
        before = (tile - 1) % STAGES
        after = (tile + 1) % STAGES
        _take_turn(turns, tile - 1, INDEX, TURNS)
        raw = warpgroup_mma(q_tile, k_tiles.index(slot).permute((1, 0)), nothing, use_acc=False, is_async=True)
        mbarrier.wait(v_full.index(before), ((tile - 1) // STAGES) & 1)
        acc = warpgroup_mma(weights, v_tiles.index(before), acc, is_async=True)
        _pass_turn(turns, INDEX, GROUPS, TURNS)
        raw = warpgroup_mma_wait(1, deps=[raw])
        mbarrier.arrive(k_free.index(slot), count=1)
        fresh, best, total, shrink = _weigh(raw, best, total, factor, origin + tile * KEYS, position, window,
                                            stop, lowest, highest, WINDOWED, SCORES, KEYS)  # fmt: skip
        fresh = gl.convert_layout(fresh.to(DTYPE), WEIGHTS)
        # The wait for the next keys is a branch, and keeps ptxas from moving the wait below before the softmax.
        mbarrier.wait(k_full.index(after), ((tile + 1) // STAGES) & 1, pred=tile + 1 < count)
        acc = warpgroup_mma_wait(0, deps=[acc])
        mbarrier.arrive(v_free.index(before), count=1)
        weights = fresh
        acc = acc * gl.expand_dims(gl.convert_layout(shrink, gl.SliceLayout(1, SUMS)), 1)

    last = count - 1
    slot = last % STAGES
    mbarrier.wait(v_full.index(slot), (last // STAGES) & 1)
    if stop % PAGE != 0:
        first = origin + last * KEYS
        _zero_outside(v_blocks, slot, (stop - first) // PAGE, first, begin, stop, KEYS, DIM)
        fence_async_shared()
        gl.thread_barrier()
    acc = warpgroup_mma(weights, v_tiles.index(slot), acc, is_async=True)
    acc = warpgroup_mma_wait(0, deps=[acc])

    result = acc * gl.expand_dims(gl.convert_layout(1.0 / total, gl.SliceLayout(1, SUMS)), 1)
    q_tile.store(result.to(DTYPE))
    gl.thread_barrier()
    place = (token.to(gl.int64) * heads + key_head * per_key + head) * DIM
    gl.store(out + (gl.expand_dims(place, 1) + channel), q_tile.load(WIDE), mask=live)
