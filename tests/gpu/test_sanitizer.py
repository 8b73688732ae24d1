"""compute-sanitizer finds nothing in any Triton kernel, on small shapes: bad accesses, races, memory never written."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu.rigs import GPU, needs_gpu

if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed", allow_module_level=True)

from tests.gpu.launch_all import LAUNCHES, main  # isort: skip  (before anything imports triton)
from plait_kernels.triton_ops import IMPLEMENTATIONS, JOINED

ROOT = Path(__file__).parents[2]
SANITIZER = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
SECONDS = 150
"""For one op with one tool, so that one that hangs takes nothing but itself."""
CLEAN = {
    "memcheck": "ERROR SUMMARY: 0 errors",
    "initcheck": "ERROR SUMMARY: 0 errors",
    "racecheck": "RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)",
}
SLOW = {("racecheck", "engine"), ("initcheck", "engine")}
"""Left out: thousands of launches, each many times slower."""
RUNS = [(tool, op) for tool in CLEAN for op in LAUNCHES if (tool, op) not in SLOW]


def command(tool: str, op: str) -> list[str]:
    assert SANITIZER is not None
    options = ["--target-processes", "application-only", "--print-limit", "5"]
    return [SANITIZER, "--tool", tool, *options, sys.executable, "-m", "tests.gpu.launch_all", op]


def test_every_op_is_launched() -> None:
    assert LAUNCHES.keys() == IMPLEMENTATIONS.keys() | JOINED.keys() | {"engine"}


@pytest.mark.skipif(GPU, reason="the sanitized runs launch them")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("op", LAUNCHES)
def test_what_is_launched_runs(op: str) -> None:
    """Under the interpreter."""
    main([op])


@pytest.mark.gpu
@needs_gpu[1]
@pytest.mark.parametrize(("tool", "op"), RUNS)
def test_the_sanitizer_finds_nothing(tool: str, op: str) -> None:
    if SANITIZER is None:
        pytest.skip("compute-sanitizer is not installed")
    # Without PyTorch's cache, every tensor is an allocation with borders that can be checked.
    environment = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    done = subprocess.run(
        command(tool, op), cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    told = done.stdout + done.stderr
    if "Device not supported" in told:
        pytest.skip("compute-sanitizer does not support this device")
    assert f"launched {op}" in told, told[-6000:]
    assert CLEAN[tool] in told, told[-6000:]
