"""Forms of the gated delta rule's longer pieces on this GPU: each checked in a process of its own, then timed.

python -m benchmarks.gpu.gdn_prefill                 # all forms
python -m benchmarks.gpu.gdn_prefill --only "64 "    # those whose name has this in it
python -m benchmarks.gpu.gdn_prefill --no-check      # times only
python -m benchmarks.gpu.gdn_prefill --compile-only  # compile all of it; needs no GPU
"""

import torch

from benchmarks.gpu.cases import Case, Delta
from benchmarks.gpu.scan_forms import Form, Forms, main
from benchmarks.gpu.world import Part


def turned(block: int, warps: int, registers: int, v: int, stages: int) -> Form:
    """``registers`` of a thread at most while solving; fewer let more programs run at once."""
    return {
        "gdn_turned_block": {"BLOCK": block},
        "gdn_turned_solve": {"num_warps": warps, "maxnreg": registers, "num_stages": 2},
        "gdn_turned_scan": {"V": v, "num_warps": v // 16, "num_stages": stages},
    }


def hopper(block: int, warps: int, registers: int, groups: int, stages: int, **scan_options: int) -> Form:
    """Solved in the same way; then ``groups`` of 64 values, ``stages`` blocks in shared memory."""
    scan = {"GROUPS": groups, "STAGES": stages, **scan_options}
    return {**turned(block, warps, registers, 64, 2), "gdn_hopper_scan": scan}


BY_NAME: dict[str, Form] = {
    "turned 64/4/168 64/3": turned(64, 4, 168, 64, 3),
    "turned 64/4/255 64/2": turned(64, 4, 255, 64, 2),
    "turned 64/4/168 128/3": turned(64, 4, 168, 128, 3),
    "turned 64/8/255 128/2": turned(64, 8, 255, 128, 2),
    "turned 32/4/128 64/3": turned(32, 4, 128, 64, 3),
    "turned 32/4/96 64/4": turned(32, 4, 96, 64, 4),
    "turned 32/2/255 128/3": turned(32, 2, 255, 128, 3),
    "hopper 64/4/168 1/3": hopper(64, 4, 168, 1, 3),
    "hopper 64/4/168 1/2": hopper(64, 4, 168, 1, 2),
    "hopper 64/4/168 2/2": hopper(64, 4, 168, 2, 2),
    "hopper 32/2/255 1/3": hopper(32, 2, 255, 1, 3),
    "hopper 32/2/255 1/6": hopper(32, 2, 255, 1, 6),
    "hopper 32/2/255 2/4": hopper(32, 2, 255, 2, 4),
    "hopper 32/2/255 1/3 x2": hopper(32, 2, 255, 1, 3, maxnreg=128),
}
"""By block/warps/registers of solving and values or groups/stages of the scan. x2: two programs of the scan
fit a multiprocessor."""


def case(label: str, parts: tuple[Part, ...]) -> Case:
    return Delta().rule(label, 0, parts, torch.float32)


FORMS = Forms("benchmarks.gpu.gdn_prefill", BY_NAME, case, "gdn")

if __name__ == "__main__":
    main(FORMS, __doc__)
