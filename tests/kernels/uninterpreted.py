"""Programs of this project in a process of their own, where Triton compiles: here its interpreter may be on."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def output_of(module: str, *arguments: str) -> str:
    """What ``python -m module`` prints; it must end well. Skips where Triton is not installed."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout
