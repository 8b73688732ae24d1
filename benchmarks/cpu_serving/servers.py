"""What is measured: servers started on a free port, and transformers in a process of its own."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx

START_SECONDS = 600.0
"""On a machine that others work on too, a start takes many times as long."""


@dataclass(frozen=True)
class Server:
    """An OpenAI-compatible server. ``extra`` goes into every request body: what keeps it from ending early."""

    name: str
    url: str
    start_seconds: float
    extra: dict[str, object]


@contextlib.contextmanager
def plait(model: Path, dtype: str, threads: int, *options: str) -> Iterator[Server]:
    """``options`` of ``plait serve`` beyond those."""
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "plait_server",
        "serve",
        str(model),
        "--port",
        str(port),
        "--dtype",
        dtype,
        *options,
    ]
    with running(f"plait {dtype}", command, f"http://127.0.0.1:{port}", "/ready", threads) as server:
        yield Server(server.name, server.url, server.start_seconds, {"ignore_eos": True})


@contextlib.contextmanager
def llama(binary: str, gguf: Path, slots: int, threads: int) -> Iterator[Server]:
    """llama.cpp's server with its default flags but for the number of slots and the context that they share."""
    port = free_port()
    command = [
        binary,
        "-m",
        str(gguf),
        "--port",
        str(port),
        "-t",
        str(threads),
        "-np",
        str(slots),
        "-c",
        str(8192 * slots),
    ]
    name = f"llama.cpp {gguf.stem.rpartition('-')[2]} x{slots}"
    with running(name, command, f"http://127.0.0.1:{port}", "/health", threads) as server:
        yield Server(server.name, server.url, server.start_seconds, {"ignore_eos": True, "cache_prompt": False})


@contextlib.contextmanager
def running(name: str, command: list[str], url: str, ready: str, threads: int) -> Iterator[Server]:
    started = time.perf_counter()
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    try:
        while True:
            if process.poll() is not None:
                raise RuntimeError(f"{name} ended with code {process.returncode}: {' '.join(command)}")
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(url + ready).status_code == 200:
                    break
            if time.perf_counter() - started > START_SECONDS:
                raise RuntimeError(f"{name} is not ready after {START_SECONDS} s")
            time.sleep(0.05)
        yield Server(name, url, time.perf_counter() - started, {})
    finally:
        process.terminate()
        process.wait()


class Transformers:
    """``generate`` of transformers, driven over a pipe; one thing at a time, as it is used."""

    def __init__(self, model: Path, dtype: str, threads: int) -> None:
        self.name = f"transformers {dtype}"
        command = [sys.executable, "-m", "benchmarks.cpu_serving.transformers_worker", str(model), dtype, str(threads)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._read()

    def generate(self, prompt: list[int], tokens: int) -> float:
        """Seconds for a greedy continuation of exactly ``tokens`` tokens."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"prompt": prompt, "tokens": tokens}) + "\n")
        self._process.stdin.flush()
        return float(self._read()["seconds"])

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()

    def _read(self) -> dict[str, float]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the transformers worker ended; run it by hand to see why")
        answer: dict[str, float] = json.loads(line)
        return answer


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
