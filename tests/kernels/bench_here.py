"""Compiles candidates for a GPU that is not here; ``python -m tests.kernels.bench_here`` prints what happened. See
``compile_ahead_here`` for the driver."""

import json
import tempfile

import torch
import triton
from triton.runtime import driver

from plait_kernels.cuda.bench import GpuBench
from plait_kernels.cuda.compile_ahead import tell_of_compiles
from plait_kernels.linear.triton import LINEAR, linear
from plait_kernels.tuning import Config
from tests.kernels.compile_ahead_here import Driver, counts

GOOD: tuple[Config, ...] = ({"OUTS": 16, "num_warps": 2}, {"OUTS": 32})
TOO_LARGE: Config = {"OUTS": 128, "INS": 512, "num_stages": 6}
"""Wants more shared memory than there is."""


def launch(config: Config) -> None:
    with LINEAR.use(config):
        linear(torch.zeros(16, 2048, dtype=torch.bfloat16), torch.zeros(256, 2048, dtype=torch.bfloat16))


def main() -> None:
    torch.cuda.current_device = lambda: 0
    torch.cuda.set_device = lambda _: None
    driver.set_active(Driver())
    late: list[str] = []
    bench = GpuBench(0.5, 1e-3)
    with tempfile.TemporaryDirectory() as folder:
        triton.knobs.cache.dir = folder
        over = bench.over()
        bench.compile([lambda config=config: launch(config) for config in (TOO_LARGE, *GOOD)])  # type: ignore[misc]
        tell_of_compiles(late.append)
        compiled, launched = counts["loaded"], counts["launched"]
        for config in GOOD:
            launch(config)
        try:
            launch(TOO_LARGE)
            failure = ""
        except Exception as error:
            failure = type(error).__name__
    print(
        json.dumps(
            {
                "compiled": compiled,
                "launched before": launched,
                "launched": counts["launched"],
                "late": len(late),
                "failure": failure,
                "over": [over, bench.over()],
            }
        )
    )


if __name__ == "__main__":
    main()
