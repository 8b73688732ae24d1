"""The gated delta rule with a turned state compiles without a GPU: no product waits for another, no register spills."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("module", "only"),
    [
        ("gdn_prefill", "turned 64"),
        ("gdn_prefill", "turned 32"),
        ("gdn_prefill", "hopper"),
        ("ssd_prefill", "parallel"),
    ],
)
def test_every_form_becomes_code_without_needless_waits(module: str, only: str) -> None:
    """In a process of its own: here the interpreter may be on."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.gpu.{module}", "--compile-only", "--only", only],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
