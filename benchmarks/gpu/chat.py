"""A chat that grows: each turn's prompt is all that was said so far and some tokens more."""

import json
import random
import statistics
import time
from dataclasses import dataclass

import httpx

FIRST, MORE, REPLY = 8192, 500, 64
"""Tokens of the first prompt, and those that each turn adds: so many in all, of which so many are the last reply."""
TURNS, CHATS = 5, 4


@dataclass(frozen=True)
class Turn:
    """``first``: seconds to the first token."""

    first: float
    cached: int
    prompt: list[int]
    reply: list[int]


def ask(client: httpx.Client, prompt: list[int]) -> Turn:
    body = {
        "model": "m",
        "prompt": prompt,
        "max_tokens": REPLY,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
    }
    begun, first, cached = time.perf_counter(), 0.0, 0
    reply: list[int] = []
    with client.stream("POST", "/v1/completions", json=body) as stream:
        for line in stream.iter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line.removeprefix("data: "))
            for choice in chunk["choices"]:
                first = first or time.perf_counter() - begun
                reply += choice["token_ids"]
            if chunk.get("usage"):
                cached = chunk["usage"]["prompt_tokens_details"]["cached_tokens"]
    return Turn(first, cached, prompt, reply)


def chat(client: httpx.Client, vocab: int, seed: str) -> list[Turn]:
    draw = random.Random(seed)
    turns = [ask(client, draw.choices(range(vocab), k=FIRST))]
    while len(turns) < TURNS:
        last = turns[-1]
        said = draw.choices(range(vocab), k=MORE - len(last.reply))
        turns.append(ask(client, [*last.prompt, *last.reply, *said]))
    return turns


def measure_chats(port: int, vocab: int) -> list[tuple[float, float]]:
    """By turn: median milliseconds to the first token, and the median of prompt tokens that were cached."""
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        chat(client, vocab, "warm")
        chats = [chat(client, vocab, f"chat {n}") for n in range(CHATS)]
    return [
        (1e3 * statistics.median(t.first for t in turns), statistics.median(t.cached for t in turns))
        for turns in zip(*chats, strict=True)
    ]
