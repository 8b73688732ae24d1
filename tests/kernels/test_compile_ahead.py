"""What is launched ahead of time is compiled and loaded, not run; launches find it, and what they miss is told."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(600)
def test_what_was_asked_for_ahead_is_there_when_it_is_launched() -> None:
    if importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.compile_ahead_here"],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert found["asked"] == found["compiled"] == found["by threads"] == 8
    assert found["launched before"] == 0
    assert found["launched"] == 16
    assert found["late"] == ["_rms_norm"]
    assert found["seconds"] > 0
