"""Longer pieces with all blocks side by side: only the states between blocks are walked.

Three launches: decays of all blocks; states before each, a walk that reads the inputs and does little else; outputs of
all blocks, each from the state before it. A sequence's blocks begin at its own rows, so what else is in a step changes
no bit of it. Between the launches:

``logs`` fp32 ``[blocks, heads, kinds, BLOCK]``, to base 2: what a token is multiplied by where it enters the state
behind its block (no logarithm); the sum of log decays since the block's start, as it is for reading; the same less the
log of the token's step size, for what it writes. Exact products have two kinds more: what fp32 lost of the sums.
``wholes`` fp32 ``[blocks, heads]``: the decay of a whole block.
``before`` ``[blocks, heads, P, N]``: the state before each block, in the dtype of the products.
"""

from dataclasses import replace
from typing import Any

import torch
import triton

from plait_kernels.early_start import starts_early
from plait_kernels.ssd.call import Call
from plait_kernels.ssd.parallel_decays import _ssd_decays
from plait_kernels.ssd.parallel_outputs import _ssd_outputs
from plait_kernels.ssd.parallel_states import _ssd_states
from plait_kernels.tables import scan_table
from plait_kernels.triton_math import TENSOR_CORE_ROWS, dot_precision, multiprocessors, power_of_two
from plait_kernels.tuning import Tunable

BLOCK = Tunable("ssd_parallel_block", {"BLOCK": 64}, ({"BLOCK": 64}, {"BLOCK": 128}))
# One stage is no choice for loops around products: with it Triton 3.6 reads beyond its shared memory on an H200.
STATES = Tunable(
    "ssd_parallel_states",
    {"N": 64, "num_warps": 4, "num_stages": 2},
    tuple({"N": n, "num_warps": w, "num_stages": s} for n in (64, 128) for w in (4, 8) for s in (2, 3, 4)),
)
# With three, what the next head needs is asked for while this one is computed; with two, other programs fill the gap.
OUTPUTS = Tunable(
    "ssd_parallel_outputs",
    {"ROWS": 64, "HEADS": 8, "num_warps": 4, "num_stages": 2},
    tuple(
        {"ROWS": r, "HEADS": h, "num_warps": r // 16, "num_stages": s}
        for r in (64, 128)
        for h in (8, 16, 32)
        for s in (2, 3)
    ),
)
HEADS_OF_DECAYS = 16
MOST_EXACT = 32
"""Tokens of a block of fp32, whose products are no tensor core's: larger tiles fit into no registers."""


def run_parallel(call: Call) -> None:
    # Tensor cores multiply bf16; everything else is multiplied as fp32, fp16 because a state may be too large for it.
    exact = call.x.dtype != torch.bfloat16
    if exact:
        call = replace(call, x=call.x.float(), b=call.b.float(), c=call.c.float())
    head_dim, state_dim, per_group = call.sizes
    heads, device, kind = call.x.shape[1], call.x.device, call.x.dtype
    key = (heads, head_dim, state_dim, int(exact))
    block = BLOCK.config(device, *key)["BLOCK"]
    if exact:
        block = min(block, MOST_EXACT)
    table = scan_table(call.segments, block)
    blocks = len(table.blocks)
    p, n = power_of_two(head_dim, TENSOR_CORE_ROWS), power_of_two(state_dim, TENSOR_CORE_ROWS)
    kinds = 5 if exact else 3
    logs = torch.empty(blocks, heads, kinds, block, dtype=torch.float32, device=device)
    wholes = torch.empty(blocks, heads, dtype=torch.float32, device=device)
    before = torch.empty(blocks, heads, p, n, dtype=kind, device=device)
    _ssd_decays[(blocks, triton.cdiv(heads, HEADS_OF_DECAYS))](
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
    _ssd_states[(len(table.groups), heads, n // config["N"])](
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
    config["ROWS"] = block if config["ROWS"] >= block else block // 2
    tiles = block // config["ROWS"]
    most = _most_heads(config.pop("HEADS"), per_group, blocks * tiles * heads, multiprocessors(device))
    parts = triton.cdiv(per_group, most)
    _ssd_outputs[(heads // per_group * parts, tiles, blocks)](
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
        triton.cdiv(per_group, parts),
        *call.x.stride()[:2],
        *call.b.stride()[:2],
        *call.c.stride()[:2],
        N=n,
        **shape,
        **config,
        **starts_early(device),
    )


def _most_heads(wanted: int, per_group: int, tiles: int, processors: int) -> int:
    """Heads that a program takes at most: fewer than wanted where the GPU would not be full else."""
    return max(1, min(wanted, per_group, tiles // (2 * processors)))
