"""The gated delta rule with a turned state compiles without a GPU: products that do not wait for one another."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("only", ["turned 64", "turned 32"])
def test_every_form_becomes_code_without_needless_waits(only: str) -> None:
    """In a process of its own: here the interpreter may be on."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu.gdn_prefill", "--compile-only", "--only", only],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
