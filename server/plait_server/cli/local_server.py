"""A server of one's own for as long as a command needs it."""

import ctypes
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

START_SECONDS = 600.0
"""A large model is read for minutes; what fails, fails earlier and ends the process."""
STOP_SECONDS = 15.0
PR_SET_PDEATHSIG = 1
"""From linux/prctl.h."""


class LocalServerFailed(Exception):
    """The server ended before it was ready; its own output says why."""


@contextmanager
def local_server(model: str | None, *flags: str) -> Iterator[str]:
    """The URL of a server that is ready; it ends with the block."""
    port = free_port()
    command = [sys.executable, "-m", "plait_server", "serve", *([model] if model else [])]
    command += ["--port", str(port), "--log-level", "warning", "--grace-seconds", "1", *flags]
    process = subprocess.Popen(command, start_new_session=True, preexec_fn=end_with_parent)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_ready(process, url)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def end_with_parent() -> None:
    """In the new process: it gets SIGTERM once whoever started it is gone, with its terminal or otherwise."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_ready(process: "subprocess.Popen[bytes]", url: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise LocalServerFailed(f"the server ended with status {process.returncode} before it was ready")
        try:
            if httpx.get(f"{url}/ready", timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            pass  # not listening yet
        time.sleep(0.1)
    raise LocalServerFailed(f"the server was not ready within {START_SECONDS:g} seconds")
