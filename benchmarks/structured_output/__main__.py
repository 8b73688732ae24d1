"""What following a grammar costs per token, with many answers at a time: the same load with a grammar and without.

    python -m benchmarks.structured_output [--url http://127.0.0.1:8000] [--streams 32] [--tokens 96] [--runs 5]

Starts two servers with the demo model when no URL is given, of which one does not fast-forward, and then also tells the
processor time that their processes took, which other work on the machine disturbs less. Kinds and servers alternate;
told are medians and their ratio to answers without a grammar.
"""

import argparse
import asyncio
import time
from collections import defaultdict
from collections.abc import Mapping
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
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
FORMS = {
    "type": "array",
    "minItems": 1_000,
    "items": {
        "type": "object",
        "properties": {
            "customer_identifier": {"type": "integer", "minimum": 1, "maximum": 9_999},
            "shipping_address": {"type": "string", "pattern": "^[A-Z][a-z]{2,9}$"},
            "payment_method": {"enum": ["credit_card", "bank_transfer", "cash_on_delivery"]},
        },
        "required": ["customer_identifier", "shipping_address", "payment_method"],
        "additionalProperties": False,
    },
}
"""Mostly names that are given."""
LINE = r'\{"customer_identifier": [0-9]{1,4}, "payment_method": "(credit_card|bank_transfer|cash_on_delivery)"\}\n'
KINDS: Mapping[str, Mapping[str, Any]] = {
    "free": {"ignore_eos": True},
    "schema": {"structured_outputs": {"json": ROWS}},
    "forms": {"structured_outputs": {"json": FORMS}},
    "regex": {"structured_outputs": {"regex": r"([a-z]{2,9} [0-9]{1,3}[,;] ?){200,300}"}},
    "lines": {"structured_outputs": {"regex": f"({LINE}){{200,300}}"}},
}


class Cost(NamedTuple):
    """Of one token of all streams, in seconds."""

    wall: float
    processor: float


def processor_seconds() -> float:
    """Of the servers that we started and their engines; 0 without one."""
    used = (child.cpu_times() for child in psutil.Process().children(recursive=True))
    return sum(times.user + times.system for times in used)


async def cost(url: str, streams: int, tokens: int, fields: Mapping[str, Any], load: str) -> Cost:
    """What a token of every stream takes, prompts included: new ones for each load."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as client:

        async def ask(number: int) -> None:
            body = {"prompt": words(16, f"{load}-{number}"), "max_tokens": tokens, "temperature": 1.0, "seed": number}
            answer = (await client.post("/v1/completions", json=body | dict(fields))).json()
            assert answer["usage"]["completion_tokens"] == tokens, answer

        started, used = time.perf_counter(), processor_seconds()
        await asyncio.gather(*map(ask, range(streams)))
        return Cost((time.perf_counter() - started) / tokens, (processor_seconds() - used) / tokens)


Found = dict[tuple[str, str], Cost]
"""By server and kind of answer."""


async def measure(urls: Mapping[str, str], streams: int, tokens: int, runs: int) -> Found:
    taken: dict[tuple[str, str], list[Cost]] = defaultdict(list)
    for run in range(-1, runs):  # The first is to get warm.
        for (kind, fields), (server, url) in product(KINDS.items(), urls.items()):
            seconds = await cost(url, streams, tokens, fields, f"{kind}-{run}")
            if run >= 0:
                taken[server, kind].append(seconds)
    return {place: Cost(*map(median, zip(*costs, strict=True))) for place, costs in taken.items()}


def two_servers(stack: ExitStack) -> dict[str, str]:
    """As it comes, and without fast-forward."""
    slow = Path(stack.enter_context(TemporaryDirectory())) / "without.yaml"
    slow.write_text("fast_forward: false\n")
    return {
        "default": stack.enter_context(local_server(None)),
        "one by one": stack.enter_context(local_server(None, "--config", str(slow))),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    with ExitStack() as stack:
        urls = {"server": options.url} if options.url else two_servers(stack)
        found = asyncio.run(measure(urls, options.streams, options.tokens, options.runs))
    for (server, kind), each in sorted(found.items()):
        free = found[server, "free"]
        told = f"{server:>10} {kind:>7}: {each.wall * 1_000:.2f} ms a token, {each.wall / free.wall:.2f} x free"
        if free.processor:
            told += f"; {each.processor * 1_000:.2f} ms of processor time, {each.processor / free.processor:.2f} x free"
        print(told)


if __name__ == "__main__":
    main()
