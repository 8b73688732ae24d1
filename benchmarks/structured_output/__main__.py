"""What following a grammar costs per token, with many answers at a time: the same load with a grammar and without.

    python -m benchmarks.structured_output [--url http://127.0.0.1:8000] [--streams 32] [--tokens 96] [--runs 5]

Starts a server with the demo model when no URL is given, and then also tells the processor time that its processes
took, which other work on the machine disturbs less. The kinds alternate; told are medians and their ratio.
"""

import argparse
import asyncio
import time
from collections.abc import Mapping
from contextlib import ExitStack
from statistics import median
from typing import Any, NamedTuple

import httpx
import psutil

from plait_server.bench.words import words
from plait_server.cli.local_server import local_server

ROWS = {
    "type": "array",
    "minItems": 1_000,
    "items": {
        "type": "object",
        "properties": {
            "id": {"type": "integer", "minimum": 1, "maximum": 9_999},
            "name": {"type": "string", "minLength": 3, "maxLength": 12},
            "kind": {"enum": ["red", "green", "blue"]},
            "parts": {"type": "array", "items": {"anyOf": [{"type": "boolean"}, {"type": "number"}]}, "maxItems": 4},
        },
        "required": ["id", "name", "kind", "parts"],
        "additionalProperties": False,
    },
}
"""Longer than any answer here: every answer is cut off at the same number of tokens."""
KINDS: Mapping[str, Mapping[str, Any]] = {
    "free": {"ignore_eos": True},
    "schema": {"structured_outputs": {"json": ROWS}},
    "regex": {"structured_outputs": {"regex": r"([a-z]{2,9} [0-9]{1,3}[,;] ?){200,300}"}},
}


class Cost(NamedTuple):
    """Of one step, in seconds."""

    wall: float
    processor: float


def processor_seconds() -> float:
    """Of the server that we started and its engine; 0 without one."""
    used = (child.cpu_times() for child in psutil.Process().children(recursive=True))
    return sum(times.user + times.system for times in used)


async def cost(url: str, streams: int, tokens: int, fields: Mapping[str, Any], load: str) -> Cost:
    """Each stream gets a token a step, so this is what one step takes, prompts included: new ones for each load."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as client:

        async def ask(number: int) -> None:
            body = {"prompt": words(16, f"{load}-{number}"), "max_tokens": tokens, "temperature": 1.0, "seed": number}
            answer = (await client.post("/v1/completions", json=body | dict(fields))).json()
            assert answer["usage"]["completion_tokens"] == tokens, answer

        started, used = time.perf_counter(), processor_seconds()
        await asyncio.gather(*map(ask, range(streams)))
        return Cost((time.perf_counter() - started) / tokens, (processor_seconds() - used) / tokens)


async def measure(url: str, streams: int, tokens: int, runs: int) -> dict[str, Cost]:
    taken: dict[str, list[Cost]] = {kind: [] for kind in KINDS}
    for run in range(-1, runs):  # The first is to get warm.
        for kind, fields in KINDS.items():
            seconds = await cost(url, streams, tokens, fields, f"{kind}-{run}")
            if run >= 0:
                taken[kind].append(seconds)
    return {kind: Cost(*map(median, zip(*costs, strict=True))) for kind, costs in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    with ExitStack() as stack:
        url = options.url or stack.enter_context(local_server(None))
        found = asyncio.run(measure(url, options.streams, options.tokens, options.runs))
    free = found["free"]
    for kind, each in found.items():
        told = f"{kind:>8}: {each.wall * 1_000:.2f} ms a step, {each.wall / free.wall:.2f} x free"
        if free.processor:
            told += f"; {each.processor * 1_000:.2f} ms of processor time, {each.processor / free.processor:.2f} x free"
        print(told)


if __name__ == "__main__":
    main()
