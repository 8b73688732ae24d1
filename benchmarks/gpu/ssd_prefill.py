"""Forms of the state-space dual scan's longer pieces on this GPU: each checked in a process of its own, then timed.

python -m benchmarks.gpu.ssd_prefill                  # all forms
python -m benchmarks.gpu.ssd_prefill --only "128 "    # those whose name has this in it
python -m benchmarks.gpu.ssd_prefill --no-check       # times only
python -m benchmarks.gpu.ssd_prefill --compile-only   # compile all of it; needs no GPU
"""

import torch

from benchmarks.gpu.cases import Case, Mamba
from benchmarks.gpu.scan_forms import Form, Forms, main
from benchmarks.gpu.world import Part


def parallel(
    block: int, states: tuple[int, int, int], outputs: tuple[int, int, int, int], registers: int = 255
) -> Form:
    """``registers`` of a thread of the outputs at most; fewer let more programs run at once."""
    n, walk_warps, walk_stages = states
    rows, heads, warps, stages = outputs
    shape = {"ROWS": rows, "HEADS": heads, "num_warps": warps, "num_stages": stages, "maxnreg": registers}
    return {
        "ssd_parallel_block": {"BLOCK": block},
        "ssd_parallel_states": {"N": n, "num_warps": walk_warps, "num_stages": walk_stages},
        "ssd_parallel_outputs": shape,
    }


BY_NAME: dict[str, Form] = {
    "128 64/4/3 64/16/4/3": parallel(128, (64, 4, 3), (64, 16, 4, 3)),
    "128 64/4/4 64/8/4/3": parallel(128, (64, 4, 4), (64, 8, 4, 3)),
    "128 64/8/3 64/32/4/3": parallel(128, (64, 8, 3), (64, 32, 4, 3)),
    "128 64/8/4 64/16/4/2": parallel(128, (64, 8, 4), (64, 16, 4, 2)),
    "128 128/8/3 128/8/8/3": parallel(128, (128, 8, 3), (128, 8, 8, 3)),
    "128 64/4/2 128/16/8/4": parallel(128, (64, 4, 2), (128, 16, 8, 4)),
    "64 64/4/4 64/16/4/3": parallel(64, (64, 4, 4), (64, 16, 4, 3)),
    "64 64/4/3 64/16/4/2/168": parallel(64, (64, 4, 3), (64, 16, 4, 2), 168),
}
"""By block, columns/warps/stages of the states, rows/heads/warps/stages of the outputs (and registers). Each of the
three kernels has a time of its own: the best form may be one that is not here."""


def case(label: str, parts: tuple[Part, ...]) -> Case:
    return Mamba().ssd(label, 0, parts, torch.float32)


FORMS = Forms("benchmarks.gpu.ssd_prefill", BY_NAME, case, "ssd")

if __name__ == "__main__":
    main(FORMS, __doc__)
