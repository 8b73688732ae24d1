"""Hopper's prefill attention compiles without a GPU to what it is for: wgmma, the copy engine, no spilled registers."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("model", ["M1", "M2", "M3w", "d128"])
def test_every_configuration_becomes_hopper_code(model: str) -> None:
    """In a process of its own: here the interpreter may be on."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu.attention_prefill", "--compile-only", "--models", model],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
