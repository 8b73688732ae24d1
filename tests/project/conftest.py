"""A server as README.md starts it, for the tests that hold pages against it."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.project.repository import PACKAGES, ROOT

START_SECONDS = 120


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return bool(response.status == 200)
    except OSError:
        return False


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a running ``make serve`` in the environment that runs the tests."""
    if not (Path(sys.prefix) / "bin/plait").exists():
        pytest.skip("plait is not installed in this environment (make venv)")
    if not (PACKAGES["plait_server"] / "cli").exists() and not (PACKAGES["plait_server"] / "cli.py").exists():
        pytest.skip("plait_server.cli does not exist yet")
    if not (PACKAGES["plait_engine"] / "demo/config.json").exists():
        pytest.skip("the demo model does not exist yet")
    port = free_port()
    log = tmp_path_factory.mktemp("serve") / "log"
    # The environment exists already: make must not install into it.
    command = ["make", f"--assume-old={sys.prefix}/.serve", "serve", f"VENV={sys.prefix}", f"ARGS=--port {port}"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    with log.open("wb") as output:
        server = subprocess.Popen(
            command, cwd=ROOT, stdout=output, stderr=output, env=environment, start_new_session=True
        )
    try:
        deadline = time.monotonic() + START_SECONDS
        while not answers(f"http://127.0.0.1:{port}/ready"):
            if server.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"make serve did not become ready:\n{log.read_text()[-3000:]}")
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(40)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()
            raise
