"""One turn of a chat, and the conversations that turns are made of."""

import json
import random
import time
from dataclasses import dataclass
from typing import Any

import httpx

from benchmarks.cpu_serving.servers import Server

Messages = list[dict[str, str]]
WORDS = [
    "river",
    "stone",
    "lamp",
    "market",
    "garden",
    "window",
    "captain",
    "letter",
    "bridge",
    "silver",
    "winter",
    "harbour",
    "teacher",
    "basket",
    "morning",
    "field",
    "mountain",
    "paper",
    "candle",
    "engine",
    "forest",
    "kitchen",
    "soldier",
    "village",
    "island",
    "mirror",
    "orange",
    "shadow",
    "thunder",
    "valley",
]


@dataclass(frozen=True)
class Turn:
    """``first`` and ``total`` in seconds; ``processed`` prompt tokens were computed, of ``prompt``."""

    first: float
    total: float
    prompt: int
    processed: int
    text: str


def prose(words: int, seed: int) -> str:
    """Filler that no other seed shares."""
    rng = random.Random(seed)
    return " ".join(rng.choice(WORDS) for _ in range(words))


async def say(client: httpx.AsyncClient, server: Server, messages: Messages, tokens: int = 24) -> Turn:
    """Send the conversation so far, greedily continued by exactly ``tokens`` tokens."""
    body: dict[str, Any] = {
        "messages": messages,
        "max_tokens": tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **server.extra,
    }
    return await _stream(client, server, "/v1/chat/completions", body)


async def complete(client: httpx.AsyncClient, server: Server, prompt: str, tokens: int = 24) -> Turn:
    """A raw completion of the text."""
    body: dict[str, Any] = {
        "prompt": prompt,
        "max_tokens": tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **server.extra,
    }
    return await _stream(client, server, "/v1/completions", body)


async def _stream(client: httpx.AsyncClient, server: Server, path: str, body: dict[str, Any]) -> Turn:
    started = time.perf_counter()
    first: float | None = None
    text, last = "", {}
    async with client.stream("POST", server.url + path, json=body, timeout=600) as response:
        if response.status_code != 200:
            raise RuntimeError(f"{server.name}: {(await response.aread()).decode()[:300]}")
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            last = json.loads(line[6:])
            piece = _piece(last)
            if piece and first is None:
                first = time.perf_counter() - started
            text += piece
    total = time.perf_counter() - started
    usage = last["usage"]
    prompt = usage["prompt_tokens"]
    # llama.cpp tells what it really computed; everybody else what was cached.
    processed = last.get("timings", {}).get("prompt_n", prompt - _cached(usage))
    return Turn(total if first is None else first, total, prompt, processed, text)


def _piece(event: dict[str, Any]) -> str:
    if not event.get("choices"):
        return ""
    choice = event["choices"][0]
    return choice.get("text") or choice.get("delta", {}).get("content") or ""


def _cached(usage: dict[str, Any]) -> int:
    return int((usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0))
