"""The scan of the turned form on Hopper's own instructions, where they suit: on compute capability 9.0."""

from dataclasses import dataclass
from functools import cache

import torch
import triton
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from plait_kernels.gated_delta_rule import hopper_kernels as kernels
from plait_kernels.storage import Slots
from plait_kernels.tables import ScanTable
from plait_kernels.tuning import Config

DIM, GROUP_VALUES = 128, 64
COMPUTE_REGISTERS, FETCH_REGISTERS = 240, 24
"""Of a thread: two groups and the fetching warp's have what a multiprocessor has. One group gets what is left."""


@dataclass(frozen=True)
class Solved:
    """What is known of all blocks of ``block`` tokens without their states: see ``turned_kernels``."""

    block: int
    erased: Tensor  # [blocks, hv, block * 128]
    written: Tensor  # [blocks, hv, 128 * block]
    scores: Tensor  # [blocks, hv, block * block]
    scales: Tensor  # [blocks, hv, 2 * block]
    wholes: Tensor  # [blocks, hv, 1]


def suits(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether the kernel knows these shapes, and the copy engine these addresses; ``v`` or what becomes of it."""
    known = v.dtype == torch.bfloat16 and q.shape[2] == v.shape[2] == DIM and q.dtype == k.dtype == v.dtype
    return known and _capable(v.device) and all(map(_fetchable, (q, k)))


@cache
def _capable(device: torch.device) -> bool:
    """Elsewhere than on a GPU nothing runs: a test plays the kernel, or it is only compiled."""
    return device.type != "cuda" or torch.cuda.get_device_capability(device) == (9, 0)


def _fetchable(x: Tensor) -> bool:
    """The copy engine wants multiples of 16 bytes; all channels of a token are one row to it."""
    token, head, channel = x.stride()
    return x.data_ptr() % 16 == 0 and token % 8 == 0 and channel == 1 and (head == DIM or x.shape[1] == 1)


@cache
def _layout(row_bytes: int) -> gl.NVMMASharedLayout:
    """Swizzled as far as a row goes. Kept: making one takes longer than all else about a descriptor."""
    return gl.NVMMASharedLayout(swizzle_byte_width=min(128, row_bytes), element_bitwidth=16, rank=2)


LINE = gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=1)


def _tiles(x: Tensor, rows: int, columns: int) -> TensorDescriptor:
    """``x`` ``[rows, columns]``, fetched so many rows and columns at a time."""
    return TensorDescriptor(x, list(x.shape), list(x.stride()), [rows, columns], _layout(2 * columns))


def scan(
    q: Tensor,
    k: Tensor,
    solved: Solved,
    view: Tensor,
    slots: Slots,
    table: ScanTable,
    out: Tensor,
    config: Config,
) -> None:
    tokens, heads = out.shape[:2]
    key_heads, block = q.shape[1], solved.block
    groups = config["GROUPS"]
    flat = [x.as_strided((tokens, key_heads * DIM), (x.stride(0), 1)) for x in (q, k)]
    scales = solved.scales.view(-1)
    kernels._gdn_hopper_scan[(triton.cdiv(DIM, groups * GROUP_VALUES), heads, len(table.groups))](
        *(_tiles(x, block, DIM) for x in flat),
        _tiles(solved.erased.view(-1, DIM), block, DIM),
        _tiles(solved.written.view(-1, block), groups * GROUP_VALUES, block),
        _tiles(solved.scores.view(-1, block), block, block),
        TensorDescriptor(scales, [len(scales)], [1], [2 * block], LINE),
        solved.wholes,
        view,
        slots.rows,
        slots.rows if slots.emits is None else slots.emits,
        table.rows,
        table.groups,
        out,
        _tiles(out.view(tokens, heads * DIM), block, GROUP_VALUES),
        heads // key_heads,
        view.stride(0),
        EMITTING=slots.emits is not None,
        BLOCK=block,
        COMPUTE_REGISTERS=COMPUTE_REGISTERS,
        FETCH_REGISTERS=FETCH_REGISTERS,
        num_warps=4,
        **config,
    )
