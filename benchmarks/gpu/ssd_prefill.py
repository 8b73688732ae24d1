"""Forms of the state-space dual scan's longer pieces on this GPU: each checked in a process of its own, then timed.

python -m benchmarks.gpu.ssd_prefill                  # all forms
python -m benchmarks.gpu.ssd_prefill --only parallel  # those whose name has this in it
python -m benchmarks.gpu.ssd_prefill --no-check       # times only
python -m benchmarks.gpu.ssd_prefill --compile-only   # compile all of it; needs no GPU
"""

import torch

from benchmarks.gpu.cases import Case, Mamba
from benchmarks.gpu.scan_forms import Form, Forms, main
from benchmarks.gpu.world import Part


def walk(block: int, p: int, warps: int, stages: int) -> Form:
    scan = {"BLOCK": block, "P": p, "num_warps": warps, "num_stages": stages}
    return {"ssd_form": {"PARALLEL": 0}, "ssd_scan": scan}


def parallel(block: int, n: int, walk_stages: int, rows: int, heads: int, warps: int, stages: int) -> Form:
    return {
        "ssd_form": {"PARALLEL": 1},
        "ssd_parallel_block": {"BLOCK": block},
        "ssd_parallel_states": {"N": n, "num_warps": 4, "num_stages": walk_stages},
        "ssd_parallel_outputs": {"ROWS": rows, "HEADS": heads, "num_warps": warps, "num_stages": stages},
    }


BY_NAME: dict[str, Form] = {
    "walk 64/64/8/2": walk(64, 64, 8, 2),
    "walk 64/64/4/2": walk(64, 64, 4, 2),
    "walk 64/64/4/3": walk(64, 64, 4, 3),
    "walk 128/64/8/2": walk(128, 64, 8, 2),
    "parallel 128 64/3 128/8/8/2": parallel(128, 64, 3, 128, 8, 8, 2),
    "parallel 128 64/3 64/8/4/2": parallel(128, 64, 3, 64, 8, 4, 2),
    "parallel 64 64/3 64/8/4/2": parallel(64, 64, 3, 64, 8, 4, 2),
}
"""By block/P/warps/stages of the walk; by block, columns/stages of the states, rows/heads/warps/stages of outputs."""


def case(label: str, parts: tuple[Part, ...]) -> Case:
    return Mamba().ssd(label, 0, parts, torch.float32)


FORMS = Forms("benchmarks.gpu.ssd_prefill", BY_NAME, case, "ssd")

if __name__ == "__main__":
    main(FORMS, __doc__)
