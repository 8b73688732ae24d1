# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
"""The scan of the turned form for Hopper, in Gluon: one warp fetches whole blocks, one or two groups of four compute.

A program has 64 values of one head for each group, and walks a sequence's blocks. The state lies in a group's
registers, as sums ``[64 values, 128 keys]`` and, rounded, as the left operand of ``wgmma``; all right operands come
from a ring in shared memory that the copy engine fills. Products overlap with all else: while the state is multiplied
with the queries, what is new in the values is rounded, and while that enters the state, outputs are stored.

A sequence's last block may be short, and what follows its tokens may be another's. Its keys are overwritten with zeros
before a product; what queries behind the end find is not stored.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

DIM = gl.constexpr(128)
"""Of keys and of all values."""
ROWS = gl.constexpr(64)
"""Values of a group: the rows of a ``wgmma``."""


@gluon.constexpr_function
def _pairs(block):
    """``[block, 2]`` such that a thread has both numbers of each token of which it has sums."""
    registers = [[0, 1], [1, 0]] + [[8 << bit, 0] for bit in range((block // 8).bit_length() - 1)]
    return gl.DistributedLinearLayout(registers, [[2, 0], [4, 0], [0, 0], [0, 0], [0, 0]], [[0, 0]] * 2, [], [block, 2])


@gluon.jit
def _fetch(
    sources, ring, walk, key_channel, first_value, GROUPS: gl.constexpr, BLOCK: gl.constexpr, STAGES: gl.constexpr
):
    """A block is signalled in two parts: what is multiplied with the state as it was, and what follows."""
    q_desc, k_desc, erased_desc, written_desc, scores_desc, scales_desc = sources
    queries, keys, erased, written, scores, scales, full, late, free = ring
    rows, first_row, end_row, head, heads = walk
    BYTES: gl.constexpr = BLOCK * (2 * DIM * 2 + GROUPS * ROWS * 2)
    LATE_BYTES: gl.constexpr = BLOCK * (DIM * 2 + BLOCK * 2 + 2 * 4)
    step = 0
    for row in range(first_row, end_row):
        first = gl.load(rows + row * 5)
        stop = gl.load(rows + row * 5 + 1)
        at = gl.load(rows + row * 5 + 4) * heads + head
        for start in range(first, stop, BLOCK):
            slot = step % STAGES
            mbarrier.wait(free.index(slot), ((step // STAGES) & 1) ^ 1)
            first_part = full.index(slot)
            mbarrier.expect(first_part, BYTES)
            tma.async_copy_global_to_shared(erased_desc, [at * BLOCK, 0], first_part, erased.index(slot))
            tma.async_copy_global_to_shared(written_desc, [at * DIM + first_value, 0], first_part, written.index(slot))
            tma.async_copy_global_to_shared(q_desc, [start, key_channel], first_part, queries.index(slot))
            second_part = late.index(slot)
            mbarrier.expect(second_part, LATE_BYTES)
            tma.async_copy_global_to_shared(scales_desc, [at * 2 * BLOCK], second_part, scales.index(slot))
            tma.async_copy_global_to_shared(k_desc, [start, key_channel], second_part, keys.index(slot))
            tma.async_copy_global_to_shared(scores_desc, [at * BLOCK, 0], second_part, scores.index(slot))
            at += heads
            step += 1


@gluon.jit
def _zero_behind(tile, live, BLOCK: gl.constexpr):
    """Zero the rows of a tile of keys from ``live`` on. Every group does so: they write the same."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0])
    token = gl.expand_dims(gl.arange(0, BLOCK, gl.SliceLayout(1, LAYOUT)), 1)
    key = tile.load(LAYOUT)
    inside, key = gl.broadcast(token < live, key)
    tile.store(gl.where(inside, key, gl.zeros_like(key)))
    fence_async_shared()
    gl.thread_barrier()


@gluon.jit
def _turned(view, slot, view_stride, head, value, LAYOUT: gl.constexpr):
    """Addresses of a slot's state, ``[64 values from value, 128 keys]``.

    They are made anew wherever they are asked for, which the compiler must not know: held all the while, they would
    take more registers than the state does.
    """
    head = gl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [head], gl.int32, is_pure=False, pack=1)
    key = gl.expand_dims(head * DIM + gl.arange(0, DIM, gl.SliceLayout(0, LAYOUT)), 0)
    value = gl.expand_dims(value + gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT)), 1)
    return view + slot.to(gl.int64) * view_stride + (key * DIM + value)


@gluon.jit
def _compute(given, ring, walk, first_value, INDEX: gl.constexpr, RULE: gl.constexpr):
    """The values of group ``INDEX``."""
    wholes, view, slots, emits, groups, out, out_desc, out_tiles, group, view_stride = given
    queries, keys, erased, written, scores, scales, full, late, free = ring
    rows, first_row, end_row, head, heads = walk
    BLOCK: gl.constexpr = RULE[0]
    STAGES: gl.constexpr = RULE[1]
    EMITTING: gl.constexpr = RULE[2]
    DTYPE: gl.constexpr = out.dtype.element_ty
    STATE: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, DIM, 16])
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK, 16])
    OF_STATE: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=STATE, k_width=2)
    OF_SUMS: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=SUMS, k_width=2)
    TOKENS: gl.constexpr = gl.SliceLayout(0, SUMS)
    SCALES: gl.constexpr = _pairs(BLOCK)
    WIDE: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])

    value = first_value + INDEX * ROWS
    sequence = gl.load(groups + group * 3 + 2)
    own = gl.load(slots + sequence)
    state = gl.load(_turned(view, own, view_stride, head, value, STATE)).to(gl.float32)
    nothing = gl.full([ROWS, BLOCK], 0.0, gl.float32, SUMS)
    token = gl.arange(0, BLOCK, gl.SliceLayout(1, WIDE))
    channel = value + gl.arange(0, ROWS, gl.SliceLayout(0, WIDE))

    step = 0
    for row in range(first_row, end_row):
        first = gl.load(rows + row * 5)
        stop = gl.load(rows + row * 5 + 1)
        at = gl.load(rows + row * 5 + 4) * heads + head
        next_whole = gl.load(wholes + at)
        for start in range(first, stop, BLOCK):
            whole = next_whole
            at += heads
            next_whole = gl.load(wholes + at, mask=start + BLOCK < stop, other=0.0)
            slot = step % STAGES
            rounded = gl.convert_layout(state.to(DTYPE), OF_SUMS)
            mbarrier.wait(full.index(slot), (step // STAGES) & 1)
            known = warpgroup_mma(rounded, erased.index(slot).permute((1, 0)), nothing, use_acc=False, is_async=True)
            o = warpgroup_mma(rounded, queries.index(slot).permute((1, 0)), nothing, use_acc=False, is_async=True)
            new = written.index(slot).slice(INDEX * ROWS, ROWS).load(SUMS).to(gl.float32)
            state = state * whole
            known = warpgroup_mma_wait(1, deps=[known])
            # This wait is a branch: what uses `known` stays behind it, or ptxas would wait for `o` as well.
            mbarrier.wait(late.index(slot), (step // STAGES) & 1)
            if start + BLOCK > stop:
                _zero_behind(keys.index(slot), stop - start, BLOCK)
            before, behind = gl.split(scales.index(slot).reshape((BLOCK, 2)).load(SCALES))
            before = gl.expand_dims(gl.convert_layout(before, TOKENS), 0)
            behind = gl.expand_dims(gl.convert_layout(behind, TOKENS), 0)
            fresh = new - known
            weighed = gl.convert_layout((fresh * behind).to(DTYPE), OF_STATE)
            fresh = gl.convert_layout(fresh.to(DTYPE), OF_SUMS)
            inner = warpgroup_mma(fresh, scores.index(slot).permute((1, 0)), nothing, use_acc=False, is_async=True)
            state = warpgroup_mma(weighed, keys.index(slot), state, is_async=True)
            o, inner = warpgroup_mma_wait(1, deps=[o, inner])
            tile = out_tiles.index(INDEX * 2 + (step & 1))
            tile.permute((1, 0)).store((o * before + inner).to(DTYPE))
            fence_async_shared()
            # What the tile of the next block was last used for must have been read before any warp gets there.
            tma.store_wait(0)
            gl.thread_barrier()
            if start + BLOCK <= stop:
                tma.async_copy_shared_to_global(out_desc, [start, head * DIM + value], tile)
            else:
                line = (start + token).to(gl.int64) * heads + head
                target = out + (gl.expand_dims(line * DIM, 1) + gl.expand_dims(channel, 0))
                gl.store(target, tile.load(WIDE), mask=gl.expand_dims(start + token < stop, 1))
            state = warpgroup_mma_wait(0, deps=[state])
            mbarrier.arrive(free.index(slot), count=1)
            step += 1
        if EMITTING:
            chunk = gl.load(rows + row * 5 + 2)
            target = gl.load(emits + chunk, mask=chunk >= 0, other=-1)
            if target >= 0:
                emitted = _turned(view, target, view_stride, head, value, STATE)
                gl.store(emitted, state.to(view.dtype.element_ty))
    tma.store_wait(0)
    gl.store(_turned(view, own, view_stride, head, value, STATE), state.to(view.dtype.element_ty))


@gluon.jit(do_not_specialize_on_alignment=["slots", "emits", "rows", "groups"])
def _gdn_hopper_scan(
    q_desc,  # [tokens, hk * 128]
    k_desc,
    erased_desc,  # [blocks * hv * BLOCK, 128]
    written_desc,  # [blocks * hv * 128, BLOCK]
    scores_desc,  # [blocks * hv * BLOCK, BLOCK]
    scales_desc,  # [blocks * hv * 2 * BLOCK]
    wholes,
    view,
    slots,
    emits,
    rows,
    groups,
    out,
    out_desc,  # [tokens, hv * 128]
    per_key,
    view_stride,
    EMITTING: gl.constexpr,
    BLOCK: gl.constexpr,
    GROUPS: gl.constexpr,  # of 64 values
    STAGES: gl.constexpr,
    COMPUTE_REGISTERS: gl.constexpr,
    FETCH_REGISTERS: gl.constexpr,
):
    """A program for each part of the values, head and sequence: those that read the same run side by side."""
    DTYPE: gl.constexpr = out.dtype.element_ty
    head = gl.program_id(1)
    heads = gl.num_programs(1)
    group = gl.program_id(2)
    first_value = gl.program_id(0) * (GROUPS * ROWS)
    key_channel = head // per_key * DIM
    queries = gl.allocate_shared_memory(DTYPE, [STAGES, BLOCK, DIM], q_desc.layout)
    keys = gl.allocate_shared_memory(DTYPE, [STAGES, BLOCK, DIM], k_desc.layout)
    erased = gl.allocate_shared_memory(DTYPE, [STAGES, BLOCK, DIM], erased_desc.layout)
    written = gl.allocate_shared_memory(DTYPE, [STAGES, GROUPS * ROWS, BLOCK], written_desc.layout)
    scores = gl.allocate_shared_memory(DTYPE, [STAGES, BLOCK, BLOCK], scores_desc.layout)
    scales = gl.allocate_shared_memory(gl.float32, [STAGES, 2 * BLOCK], scales_desc.layout)
    out_tiles = gl.allocate_shared_memory(DTYPE, [GROUPS * 2, BLOCK, ROWS], out_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    late = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for s in gl.static_range(STAGES):
        mbarrier.init(full.index(s), count=1)
        mbarrier.init(late.index(s), count=1)
        mbarrier.init(free.index(s), count=GROUPS)
    fence_async_shared()

    ring = (queries, keys, erased, written, scores, scales, full, late, free)
    first_row, end_row = gl.load(groups + group * 3), gl.load(groups + group * 3 + 1)
    walk = (rows, first_row, end_row, head, heads)
    given = (wholes, view, slots, emits, groups, out, out_desc, out_tiles, group, view_stride)
    sources = (q_desc, k_desc, erased_desc, written_desc, scores_desc, scales_desc)
    RULE: gl.constexpr = (BLOCK, STAGES, EMITTING)
    if GROUPS == 1:
        gl.warp_specialize(
            [
                (_compute, (given, ring, walk, first_value, 0, RULE)),
                (_fetch, (sources, ring, walk, key_channel, first_value, GROUPS, BLOCK, STAGES)),
            ],
            [1],
            [FETCH_REGISTERS],
        )
    else:
        gl.warp_specialize(
            [
                (_compute, (given, ring, walk, first_value, 0, RULE)),
                (_compute, (given, ring, walk, first_value, 1, RULE)),
                (_fetch, (sources, ring, walk, key_channel, first_value, GROUPS, BLOCK, STAGES)),
            ],
            [4, 1],
            [COMPUTE_REGISTERS, FETCH_REGISTERS],
        )
