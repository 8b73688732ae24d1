"""``plait serve`` that is ended before it serves."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_before_the_server_listens_ends_the_engine_too(tmp_path: Path, number: signal.Signals) -> None:
    """The engine's process is the first thing that is started; as in a terminal, SIGINT goes to the whole group."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "plait_server", "serve", "--port", "0"]
    with subprocess.Popen(
        command, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        engine = child_of(process.pid)
        os.killpg(process.pid, number)
        _, said = process.communicate(timeout=20)
    assert process.returncode == 0
    assert "Traceback" not in said
    assert not engine.is_running()
    assert list(tmp_path.glob("plait-*")) == []


def child_of(pid: int) -> psutil.Process:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        for child in psutil.Process(pid).children():
            if "plait_engine.process" in child.cmdline():
                return child
        time.sleep(0.005)
    raise TimeoutError("no engine was started")
