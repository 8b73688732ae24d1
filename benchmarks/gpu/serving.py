"""Serving speed on one GPU: ``python -m benchmarks.gpu.serving --models m1,m2,m3 --loads W1,W2,W3,W4,W5,chat``.

A server is started for each model, as a user starts it, and asked over HTTP: greedy, ``ignore_eos``, prompts of random
tokens of exact length, a closed loop. Before each load a few of its requests are sent to warm up. Beside ours: what
vLLM 0.26.0 gave on an H200 under the same rules (output tokens/s, median first token, median time per output token).
``chat`` is one chat after another, of five turns: 8,192 tokens, growing by 500.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu.chat import measure_chats
from benchmarks.gpu.closed_loop import Reply, closed_loop
from benchmarks.gpu.models import NAMES, write_model

READY_SECONDS = 240.0
CHAT = "chat"


@dataclass(frozen=True)
class Load:
    """``shared``: so many prefixes of ``prefix`` tokens, which the prompts begin with in turn."""

    requests: int
    prompt: int
    output: int
    concurrency: int
    shared: int = 0
    prefix: int = 0

    def bodies(self, vocab: int, seed: str) -> list[dict[str, Any]]:
        draw = random.Random(seed)

        def tokens(n: int) -> list[int]:
            return draw.choices(range(vocab), k=n)

        prefixes = [tokens(self.prefix) for _ in range(self.shared)] or [[]]
        prompts = (prefixes[i % len(prefixes)] for i in range(self.requests))
        return [
            {
                "model": "m",
                "prompt": [*prefix, *tokens(self.prompt - len(prefix))],
                "max_tokens": self.output,
                "temperature": 0,
                "ignore_eos": True,
            }
            for prefix in prompts
        ]


LOADS = {
    "W1": Load(256, 1024, 256, 256),
    "W2": Load(128, 1024, 256, 32),
    "W3": Load(8, 1024, 256, 1),
    "W4": Load(64, 8320, 64, 16, shared=8, prefix=8192),
    "W5": Load(4, 32768, 32, 1),
}
VLLM = {
    ("m1", "W1"): (7696, 2481, 23.3),
    ("m1", "W2"): (4544, 402, 5.50),
    ("m1", "W3"): (255, 90, 3.57),
    ("m1", "W4"): (1240, 413, 4.30),
    ("m1", "W5"): (44, 626, 3.20),
    ("m2", "W1"): (7204, 2294, 26.1),
    ("m2", "W2"): (4428, 429, 5.49),
    ("m2", "W3"): (221, 98, 4.17),
    ("m2", "W4"): (1139, 494, 3.72),
    ("m2", "W5"): (51, 520, 3.38),
    ("m3", "W1"): (8495, 1838, 22.4),
    ("m3", "W2"): (5087, 262, 5.28),
}


@dataclass(frozen=True)
class Result:
    """Milliseconds but for the rate."""

    model: str
    load: str
    tokens_per_second: float
    first: float
    first_p99: float
    per_token: float
    gap: float
    cached: float

    @classmethod
    def of(cls, model: str, load: str, replies: list[Reply], seconds: float) -> "Result":
        firsts = sorted(reply.first for reply in replies)
        gaps = [gap for reply in replies for gap in reply.gaps]
        return cls(
            model,
            load,
            sum(reply.tokens for reply in replies) / seconds,
            1e3 * statistics.median(firsts),
            1e3 * firsts[min(len(firsts) - 1, int(0.99 * len(firsts)))],
            1e3 * statistics.median(reply.per_token for reply in replies),
            1e3 * statistics.median(gaps),
            statistics.mean(reply.cached for reply in replies),
        )

    def __str__(self) -> str:
        row = (
            f"{self.model} {self.load} {self.tokens_per_second:8,.0f} tok/s  first {self.first:7.1f} "
            f"(p99 {self.first_p99:7.1f})  per token {self.per_token:6.2f}  gap {self.gap:6.2f}  "
            f"cached {self.cached:5.0f}"
        )
        if (theirs := VLLM.get((self.model, self.load))) is None:
            return row
        rate, first, per_token = theirs
        return (
            f"{row} | vLLM {rate:6,} {first:5} {per_token:5.2f} | x{self.tokens_per_second / rate:.2f} "
            f"x{self.first / first:.2f} x{self.per_token / per_token:.2f}"
        )


@contextlib.contextmanager
def server(folder: Path, log: Path, settings: dict[str, Any]) -> Iterator[tuple[int, float]]:
    """Its port, and the seconds from start to ready."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = folder / "serve.yaml"
    config.write_text(json.dumps({"load_format": "random", "served_model_name": ["m"], "port": port, **settings}))
    command = [sys.executable, "-m", "plait_server", "serve", str(folder), "--config", str(config)]
    started = time.perf_counter()
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=os.environ.copy())
        try:
            while not _ready(port):
                if process.poll() is not None or time.perf_counter() - started > READY_SECONDS:
                    raise RuntimeError(f"the server did not start:\n{log.read_text()[-4000:]}")
                time.sleep(0.05)
            yield port, time.perf_counter() - started
        finally:
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()


def _ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=2) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def measure(model: str, port: int, name: str, vocab: int) -> Result:
    load = LOADS[name]
    warm = load.bodies(vocab, f"{name}, warm")[: max(2, load.concurrency)]
    for body in warm:
        body["max_tokens"] = 8

    def tell(done: int, total: int) -> None:
        if sys.stderr.isatty():
            print(f"\r{model} {name} {done}/{total} ", end="", file=sys.stderr)

    asyncio.run(closed_loop(port, warm, load.concurrency))
    replies, seconds = asyncio.run(closed_loop(port, load.bodies(vocab, name), load.concurrency, tell))
    return Result.of(model, name, replies, seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="m1,m2,m3", help=", ".join(f"{k}: {v}" for k, v in NAMES.items()))
    parser.add_argument("--loads", default=",".join((*LOADS, CHAT)))
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of `plait serve`")
    parser.add_argument("--logs", type=Path, default=Path(tempfile.gettempdir()), help="folder for the servers' output")
    parser.add_argument("--out", type=Path, help="JSON file for the results")
    options = parser.parse_args()
    settings = {name: json.loads(value) for name, value in (pair.split("=", 1) for pair in options.set)}
    results: list[dict[str, Any]] = []
    for model in options.models.split(","):
        with tempfile.TemporaryDirectory() as scratch:
            config = write_model(model, Path(scratch))
            vocab = config["vocab_size"]
            assert isinstance(vocab, int)
            with server(Path(scratch), options.logs / f"{model}.log", settings) as (port, seconds):
                print(f"{model} ready after {seconds:.1f} s", flush=True)
                for name in options.loads.split(","):
                    if name == CHAT:
                        for turn, (first, cached) in enumerate(measure_chats(port, vocab), 1):
                            print(f"{model} turn {turn}: first token {first:6.1f} ms, cached {cached:6.0f}", flush=True)
                            results.append({"model": model, "load": CHAT, "turn": turn, "first": first})
                        continue
                    result = measure(model, port, name, vocab)
                    print(result, flush=True)
                    results.append({**asdict(result), "ready_seconds": seconds, "settings": settings})
    if options.out:
        options.out.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
