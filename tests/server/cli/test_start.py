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
    assert has_ended(engine)
    assert list(tmp_path.glob("plait-*")) == []


def test_the_log_says_when_it_is_ready_and_each_option_once(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "plait_server", "serve", "--port", "0", "--served-model-name", "small"]
    lines: list[str] = []
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            lines.append(line)
            if line.endswith("ready to serve small\n"):
                process.terminate()
    assert process.returncode == 0
    assert len([line for line in lines if "ready to serve small" in line]) == 1
    for option in ("max_queue", "port", "served_names"):
        assert len([line for line in lines if f" {option} = " in line]) == 1


LOCAL = """
import time
from plait_server.cli.local_server import local_server
with local_server(None):
    print("up", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGKILL])
def test_a_server_of_one_s_own_ends_with_whoever_started_it(number: signal.Signals) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", LOCAL]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        both = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(number)
    assert len(both) == 2
    gone, left = psutil.wait_procs(both, timeout=20)
    for each in left:
        each.kill()
    assert len(gone) == 2


def has_ended(process: psutil.Process) -> bool:
    """Also where nobody has asked for the exit status of a child without a parent."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE or not process.is_running()
    except psutil.NoSuchProcess:
        return True


def child_of(pid: int) -> psutil.Process:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        for child in psutil.Process(pid).children():
            if "plait_engine.process" in child.cmdline():
                return child
        time.sleep(0.005)
    raise TimeoutError("no engine was started")
