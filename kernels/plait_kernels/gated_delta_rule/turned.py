"""The chunked form for tensor cores that take an operand from registers: the state is kept turned, ``[values, keys]``.

``[values, keys] @ [keys, tokens]`` then has the state, as it lies in registers, for its left operand, and so has the
product that brings what is written back into it: from block to block nothing passes through shared memory, which is
what a long sequence waits for. What needs no state comes from a launch before, for all blocks side by side.
"""

from typing import Any

import torch
import triton
from torch import Tensor

from plait_kernels.gated_delta_rule import turned_kernels as kernels
from plait_kernels.segments import Segments
from plait_kernels.storage import Slots
from plait_kernels.tables import ScanTable, scan_table
from plait_kernels.triton_math import TENSOR_CORE_ROWS, dot_precision, power_of_two
from plait_kernels.tuning import Config, Tunable

BLOCK = Tunable("gdn_turned_block", {"BLOCK": 32}, ({"BLOCK": 32}, {"BLOCK": 64}))
SOLVE = Tunable(
    "gdn_turned_solve",
    {"num_warps": 4, "num_stages": 2},
    tuple({"num_warps": w, "maxnreg": r, "num_stages": 2} for w, r in ((4, 128), (4, 168), (4, 255), (8, 128))),
)
# One stage is no choice for loops around products: with it Triton 3.6 reads beyond its shared memory on an H200.
SCAN = Tunable(
    "gdn_turned_scan",
    {"V": 64, "num_warps": 4, "num_stages": 2},
    tuple({"V": v, "num_warps": v // 16, "num_stages": s} for v in (64, 128) for s in (2, 3, 4)),
)
HOPPER = Tunable(
    "gdn_hopper_scan",
    {"GROUPS": 0, "STAGES": 3},
    (
        {"GROUPS": 1, "STAGES": 3, "maxnreg": 128},
        {"GROUPS": 1, "STAGES": 3},
        {"GROUPS": 1, "STAGES": 6},
        {"GROUPS": 2, "STAGES": 2},
    ),
)
"""``GROUPS`` of 64 values in a program of ``hopper``'s scan, where that suits; 0: Triton's scan. ``STAGES`` blocks in
shared memory. With ``maxnreg`` 128 two programs of one group and three blocks of 32 fit a multiprocessor."""


def run(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    view: Tensor,
    slots: Slots,
    segments: Segments,
    out: Tensor,
) -> None:
    """All but the decodes into ``out``."""
    heads, value_dim = v.shape[1:]
    key_heads, key_dim = q.shape[1:]
    device, key = q.device, (heads, key_dim, value_dim, int(v.dtype == torch.float32))
    block = BLOCK.config(device, *key)["BLOCK"]
    table = scan_table(segments, block)
    blocks = len(table.blocks)
    all_k, all_v = (power_of_two(n, TENSOR_CORE_ROWS) for n in (key_dim, value_dim))
    tiles = (block * all_k, block * all_v, block * block)
    erased, written, scores = (torch.empty(blocks, heads, n, dtype=v.dtype, device=device) for n in tiles)
    scales, wholes = (torch.empty(blocks, heads, n, dtype=torch.float32, device=device) for n in (2 * block, 1))
    made = (erased, written, scores, scales, wholes)
    sizes = (key_dim, value_dim, heads // key_heads)
    shape: dict[str, Any] = {"BLOCK": block, "K": all_k, "PRECISION": dot_precision(v.dtype)}
    kernels._gdn_turned_solve[(blocks, heads)](
        q,
        k,
        v,
        a,
        b,
        a_log,
        dt_bias,
        table.blocks,
        *made,
        *sizes,
        key_dim**-0.5,
        *q.stride()[:2],
        *k.stride()[:2],
        *v.stride()[:2],
        a.stride(0),
        b.stride(0),
        V=all_v,
        **shape,
        **SOLVE.config(device, *key),
    )
    wanted = HOPPER.config(device, *key)
    if wanted["GROUPS"] and _scanned_by_hopper(q, k, block, made, view, slots, table, out, wanted):
        return
    config = dict(SCAN.config(device, *key))
    config["V"] = min(config["V"], all_v)
    kernels._gdn_turned_scan[(len(table.groups), heads, triton.cdiv(value_dim, config["V"]))](
        q,
        k,
        *made,
        view,
        slots.rows,
        slots.rows if slots.emits is None else slots.emits,
        table.rows,
        table.groups,
        out,
        *sizes,
        *q.stride()[:2],
        *k.stride()[:2],
        view.stride(0),
        EMITTING=slots.emits is not None,
        ALL_V=all_v,
        **shape,
        **config,
    )


def _scanned_by_hopper(
    q: Tensor,
    k: Tensor,
    block: int,
    made: tuple[Tensor, ...],
    view: Tensor,
    slots: Slots,
    table: ScanTable,
    out: Tensor,
    config: Config,
) -> bool:
    """Whether ``hopper`` knows how, and has done it."""
    from plait_kernels.gated_delta_rule import hopper

    if not hopper.suits(q, k, out):
        return False
    hopper.scan(q, k, hopper.Solved(block, *made), view, slots, table, out, config)
    return True
