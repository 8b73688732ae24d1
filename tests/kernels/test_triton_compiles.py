"""Every Triton kernel compiles for GPUs that are not here, at the shapes of real models, and fits into their memory."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("capability", [80, 89, 90])
@pytest.mark.parametrize("match", ["decode 32,sample M1,mix 32", "1x1024,logprobs,copy_units", "linear M1 32"])
def test_kernels_compile_without_a_gpu(capability: int, match: str) -> None:
    """In a process of its own: here the interpreter may be on."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "benchmarks.gpu.kernels", "--compile-only", "--processes", "2"]
    done = subprocess.run(
        [*command, "--capability", str(capability), "--match", match],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
