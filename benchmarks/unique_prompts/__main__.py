"""``python -m benchmarks.unique_prompts MODEL``: prompts that have nothing in common, with prefix reuse on and off.

Both servers are up, and one is idle while the other is measured. A round asks both, in turn first and second, for the
same number of prompts that nobody has seen before; compared are medians over the rounds.
"""

import argparse
import asyncio
import contextlib
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from benchmarks.cpu_serving.loads import prompt_of, stream
from benchmarks.cpu_serving.servers import Server, plait


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.unique_prompts", description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--length", type=int, default=512, help="tokens in a prompt")
    parser.add_argument("--tokens", type=int, default=8, help="tokens to generate for each")
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--memory", help="of each server: small enough, and prompts evict one another")
    show(asyncio.run(measure(parser.parse_args())))


@contextlib.contextmanager
def server(arguments: argparse.Namespace, reuse: bool) -> Iterator[Server]:
    options = [] if arguments.memory is None else ["--memory", arguments.memory]
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(f"prefix_reuse: {json.dumps(reuse)}\n")
        file.flush()
        with plait(arguments.model, arguments.dtype, arguments.threads, "--config", file.name, *options) as started:
            yield started


async def measure(arguments: argparse.Namespace) -> dict[str, list[tuple[float, float]]]:
    """For reuse on and off, of each round: the median time to first token, and seconds for all prompts."""
    vocabulary = json.loads((arguments.model / "config.json").read_text())["vocab_size"]
    results: dict[str, list[tuple[float, float]]] = {"on": [], "off": []}
    with server(arguments, True) as on, server(arguments, False) as off:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        async with httpx.AsyncClient(limits=limits) as client:
            for run in range(-1, arguments.runs):
                turns = [("on", on), ("off", off)]
                for name, asked in turns if run % 2 else reversed(turns):
                    seed = 1_000_000 * (run + 2) + (500_000 if name == "on" else 0)
                    outcome = await ask_all(client, asked, arguments, vocabulary, seed)
                    if run >= 0:  # The first round warms up.
                        results[name].append(outcome)
    return results


async def ask_all(
    client: httpx.AsyncClient, asked: Server, arguments: argparse.Namespace, vocabulary: int, seed: int
) -> tuple[float, float]:
    gate = asyncio.Semaphore(arguments.concurrency)

    async def one(place: int) -> float:
        prompt = prompt_of(arguments.length, vocabulary, seed + place)
        async with gate:
            return (await stream(client, asked, prompt, arguments.tokens)).first

    started = time.perf_counter()
    firsts = await asyncio.gather(*map(one, range(arguments.prompts)))
    return statistics.median(firsts), time.perf_counter() - started


def show(results: dict[str, list[tuple[float, float]]]) -> None:
    for place, what in enumerate(("time to first token", "time for all")):
        on, off = ([outcome[place] for outcome in results[name]] for name in ("on", "off"))
        pairs = statistics.median(a / b for a, b in zip(on, off, strict=True))
        medians = statistics.median(on), statistics.median(off)
        print(
            f"{what}: on {1000 * medians[0]:.0f} ms, off {1000 * medians[1]:.0f} ms, medians of {len(on)} rounds; "
            f"on / off {medians[0] / medians[1]:.3f} (median of the pairs' ratios {pairs:.3f})"
        )


if __name__ == "__main__":
    main()
