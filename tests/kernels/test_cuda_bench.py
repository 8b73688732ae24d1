"""Candidates are compiled before they are timed; one that cannot be made is an error of its own launch only."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(600)
def test_what_cannot_be_made_does_not_keep_others_from_being_made() -> None:
    if importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.bench_here"],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert found["compiled"] == found["launched"] == 2
    assert found["launched before"] == 0
    assert found["failure"] == "OutOfResources"
    assert found["late"] == 1, "only the one that cannot be made is looked for again"
    assert found["over"] == [False, True], "when the time for compiling is used up"
