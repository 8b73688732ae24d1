"""Longer pieces with all blocks side by side: only the states between blocks are walked.

Three launches: decays of all blocks; states before each, a walk that reads the inputs and does little else; outputs of
all blocks, each from the state before it. A sequence's blocks begin at its own rows, so what else is in a step changes
no bit of it.
"""

from typing import Any

import torch
import triton

from plait_kernels.early_start import starts_early
from plait_kernels.ssd import parallel_kernels as kernels
from plait_kernels.ssd.call import Call
from plait_kernels.tables import scan_table
from plait_kernels.triton_math import TENSOR_CORE_ROWS, dot_precision, multiprocessors, power_of_two
from plait_kernels.tuning import Tunable

BLOCK = Tunable("ssd_parallel_block", {"BLOCK": 64}, ({"BLOCK": 64}, {"BLOCK": 128}))
# One stage is no choice for loops around products: with it Triton 3.6 reads beyond its shared memory on an H200.
STATES = Tunable(
    "ssd_parallel_states",
    {"N": 64, "num_warps": 4, "num_stages": 2},
    tuple({"N": n, "num_warps": 4, "num_stages": s} for n in (64, 128) for s in (2, 3, 4)),
)
OUTPUTS = Tunable(
    "ssd_parallel_outputs",
    {"ROWS": 64, "HEADS": 8, "num_warps": 4, "num_stages": 2},
    tuple(
        {"ROWS": r, "HEADS": h, "num_warps": r // 16, "num_stages": s}
        for r in (64, 128)
        for h in (4, 8, 16)
        for s in (2, 3)
    ),
)
HEADS_OF_DECAYS = 16


def run_parallel(call: Call) -> None:
    """``call`` has inputs of the products' dtype."""
    head_dim, state_dim, per_group = call.sizes
    heads, device, kind = call.x.shape[1], call.x.device, call.x.dtype
    exact = kind == torch.float32
    key = (heads, head_dim, state_dim, int(exact))
    block = BLOCK.config(device, *key)["BLOCK"]
    table = scan_table(call.segments, block)
    blocks = len(table.blocks)
    p, n = power_of_two(head_dim, TENSOR_CORE_ROWS), power_of_two(state_dim, TENSOR_CORE_ROWS)
    kinds = 5 if exact else 3
    logs = torch.empty(blocks, heads, kinds, block, dtype=torch.float32, device=device)
    wholes = torch.empty(blocks, heads, dtype=torch.float32, device=device)
    before = torch.empty(blocks, heads, p, n, dtype=kind, device=device)
    kernels._ssd_decays[(blocks, triton.cdiv(heads, HEADS_OF_DECAYS))](
        call.dt,
        call.a_log,
        call.dt_bias,
        table.blocks,
        logs,
        wholes,
        heads,
        call.dt.stride(0),
        *call.dt_limit,
        BLOCK=block,
        HEADS=HEADS_OF_DECAYS,
        EXACT=exact,
        **starts_early(device),
    )
    sizes = (head_dim, state_dim, per_group)
    shape: dict[str, Any] = {"BLOCK": block, "P": p, "KINDS": kinds, "PRECISION": dot_precision(kind)}
    config = dict(STATES.config(device, *key))
    config["N"] = min(config["N"], n)
    kernels._ssd_states[(len(table.groups), heads, n // config["N"])](
        call.x,
        call.b,
        logs,
        wholes,
        before,
        call.view,
        call.slots.rows,
        call.emits,
        table.rows,
        table.groups,
        *sizes,
        *call.x.stride()[:2],
        *call.b.stride()[:2],
        call.view.stride(0),
        EMITTING=call.slots.emits is not None,
        ALL_N=n,
        **shape,
        **config,
        **starts_early(device),
    )
    config = dict(OUTPUTS.config(device, *key))
    config["ROWS"] = min(config["ROWS"], block)
    tiles = block // config["ROWS"]
    each = _heads_each(config.pop("HEADS"), per_group, blocks * tiles * heads, multiprocessors(device))
    parts = triton.cdiv(per_group, each)
    kernels._ssd_outputs[(heads // per_group * parts, tiles, blocks)](
        call.x,
        call.b,
        call.c,
        call.d,
        logs,
        before,
        table.blocks,
        call.out,
        *sizes,
        parts,
        each,
        *call.x.stride()[:2],
        *call.b.stride()[:2],
        *call.c.stride()[:2],
        N=n,
        **shape,
        **config,
        **starts_early(device),
    )


def _heads_each(wanted: int, per_group: int, tiles: int, processors: int) -> int:
    """Heads that a program takes: fewer than wanted where the GPU would not be full else."""
    return max(1, min(wanted, per_group, tiles // (2 * processors)))
