"""Compiles ahead for a GPU that is not here; ``python -m tests.kernels.compile_ahead_here`` prints what happened.

The driver is made up: it loads nothing and launches nothing, and counts. A process of its own, because elsewhere Triton
may be interpreted.
"""

import json
import tempfile
import threading
from collections import Counter
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from plait_kernels.copy_units.triton import copy_units
from plait_kernels.cuda.compile_ahead import CompileAhead, tell_of_compiles
from plait_kernels.norm.triton import rms_norm
from plait_kernels.sampling.triton import logprobs

counts: Counter[str] = Counter()


class Driver:
    """As much of a driver as compiling and launching ask for."""

    class utils:
        @staticmethod
        def load_binary(*_: Any) -> tuple[int, int, int, int, int]:
            counts["loaded"] += 1
            counts["loaded elsewhere"] += threading.current_thread() is not threading.main_thread()
            return 1, 1, 0, 0, 1024

        @staticmethod
        def get_device_properties(_: int) -> dict[str, int]:
            return {"max_shared_mem": 232448}

    @staticmethod
    def get_current_device() -> int:
        return 0

    @staticmethod
    def get_current_stream(_: int) -> int:
        return 0

    @staticmethod
    def get_current_target() -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    @staticmethod
    def launcher_cls(*_: Any) -> Any:
        def launch(*_: Any) -> None:
            counts["launched"] += 1

        return launch


def steps() -> None:
    """Sixteen launches of eight kernels; the lengths of lists are not told apart."""
    for rows in (1, 1, 2, 64, 64):
        rms_norm(torch.zeros(rows, 256, dtype=torch.bfloat16), torch.zeros(256, dtype=torch.bfloat16), 1e-6)
    arena = torch.zeros(8192, dtype=torch.uint8)
    for units in (1, 2):
        copy_units(arena, torch.zeros(units, dtype=torch.int32), torch.ones(units, dtype=torch.int32), 256)
    for k in (1, 5):
        logprobs(torch.zeros(2, 1000), torch.zeros(2, dtype=torch.int64), k)


def main() -> None:
    torch.cuda.current_device = lambda: 0
    torch.cuda.set_device = lambda _: None
    driver.set_active(Driver())
    told: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        triton.knobs.cache.dir = folder
        with CompileAhead(2) as ahead:
            with ahead.instead_of_launching():
                steps()
            asked, launched = ahead.kernels, counts["launched"]
        tell_of_compiles(told.append)
        compiled = counts["loaded"]
        steps()
        rms_norm(torch.zeros(4, 512, dtype=torch.bfloat16), None, 1e-6)
    print(
        json.dumps(
            {
                "asked": asked,
                "launched before": launched,
                "compiled": compiled,
                "by threads": counts["loaded elsewhere"],
                "launched": counts["launched"],
                "late": [name.partition("[")[0] for name in told],
                "seconds": ahead.seconds,
            }
        )
    )


if __name__ == "__main__":
    main()
