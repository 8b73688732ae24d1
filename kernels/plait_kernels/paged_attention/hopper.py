"""``paged_attention`` with the longer pieces on Hopper's own instructions, where they suit; all else as ``triton`` does
it.

It needs compute capability 9.0.
"""

from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from plait_kernels.paged_attention import hopper_kernel as kernel
from plait_kernels.paged_attention import triton_prefill
from plait_kernels.paged_attention.call import Call
from plait_kernels.paged_attention.triton import attention_with
from plait_kernels.tables import query_tiles
from plait_kernels.triton_math import multiprocessors, power_of_two
from plait_kernels.tuning import Tunable

PAGE, BLOCK, GROUP_ROWS = 16, 64, 64
REGISTERS = {2: (240, 24), 3: (160, 32)}
"""Of a thread that computes and of one that fetches, by groups: together what a multiprocessor has."""


def _options(*rows: tuple[int, int, int, int]) -> tuple[dict[str, int], ...]:
    return tuple(dict(zip(("GROUPS", "KEYS", "STAGES", "TURNS"), row, strict=True)) for row in rows)


TUNABLES = {
    dim: Tunable(f"attention_hopper_{dim}", options[0], options)
    for dim, options in {
        64: _options((3, 128, 2, 0), (3, 128, 2, 1), (3, 64, 4, 0), (2, 128, 3, 0), (2, 128, 3, 1)),
        128: _options((2, 128, 2, 0), (2, 128, 2, 1), (2, 64, 4, 0), (2, 64, 4, 1)),
        256: _options((2, 64, 2, 0), (2, 64, 2, 1), (2, 32, 4, 0), (2, 32, 4, 1)),
    }.items()
}
"""By head size. ``GROUPS`` of 64 rows; ``STAGES`` tiles of ``KEYS`` keys, and as many of values; whether groups take
``TURNS``."""


def suits(call: Call) -> bool:
    """Whether the kernel knows this call's shapes and rules, and has tiles enough to keep the GPU busy."""
    q, k_view, v_view = call.q, call.k_view, call.v_view
    known = (
        q.element_size() == 2
        and q.dtype == k_view.dtype == v_view.dtype
        and q.shape[2] == call.v.shape[2]
        and q.shape[2] in TUNABLES
        and power_of_two(call.group) <= GROUP_ROWS
        and call.pages.page_size == PAGE
        and call.softcap is None
        and call.sinks is None
        and call.scale > 0
    )
    return known and all(map(_fetchable, (k_view, v_view))) and 2 * _programs(call) > multiprocessors(q.device)


def _fetchable(view: Tensor) -> bool:
    """The copy engine wants addresses and strides in units of 16 bytes; all channels of an entry are one row to it."""
    granule, entry, head, channel = view.stride()
    aligned = view.data_ptr() % 16 == 0 and granule % 8 == 0 and entry % 8 == 0
    return aligned and channel == 1 and (head == view.shape[3] or view.shape[2] == 1)


def _tile_tokens(call: Call, groups: int) -> int:
    return groups * GROUP_ROWS // power_of_two(call.group)


def _programs(call: Call) -> int:
    config = TUNABLES[call.q.shape[2]].config(call.q.device, call.group, call.window or 0)
    return len(query_tiles(call.segments, _tile_tokens(call, config["GROUPS"]))) * call.k.shape[1]


def _descriptor(view: Tensor) -> TensorDescriptor:
    """``[granules, 16, channels of all heads]``, fetched 16 entries by 64 channels at a time."""
    granule, entry = view.stride()[:2]
    shape = [view.shape[0], PAGE, view.shape[2] * view.shape[3]]
    layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=3)
    return TensorDescriptor(view, shape, [granule, entry, 1], [1, PAGE, BLOCK], layout)


def run_prefill(call: Call) -> None:
    dim, segments = call.q.shape[2], call.segments
    config = TUNABLES[dim].config(call.q.device, call.group, call.window or 0)
    tiles = query_tiles(segments, _tile_tokens(call, config["GROUPS"]))
    compute, fetch = REGISTERS[config["GROUPS"]]
    kernel.prefill[(len(tiles), call.k.shape[1])](
        call.q,
        _descriptor(call.k_view),
        _descriptor(call.v_view),
        call.pages.table,
        segments.starts,
        segments.lengths,
        tiles,
        call.out,
        call.group,
        *call.q.stride()[:2],
        call.pages.table.stride(0),
        call.window or 0,
        call.scale,
        GROUP=power_of_two(call.group),
        DIM=dim,
        WINDOWED=call.window is not None,
        COMPUTE_REGISTERS=compute,
        FETCH_REGISTERS=fetch,
        num_warps=4,
        **config,
    )


def prefill(call: Call) -> None:
    run_prefill(call) if suits(call) else triton_prefill.run_prefill(call)


paged_attention = attention_with(prefill)
