"""What is asked of a server, and what is read off the stream of answers."""

import asyncio
import json
import random
import time
from dataclasses import dataclass

import httpx

from benchmarks.cpu_serving.servers import Server


@dataclass(frozen=True)
class Stream:
    """Seconds, from the request on, at which each piece came. ``tokens`` as asked for."""

    arrivals: tuple[float, ...]
    tokens: int

    @property
    def first(self) -> float:
        return self.arrivals[0]

    @property
    def total(self) -> float:
        return self.arrivals[-1]

    @property
    def longest_gap(self) -> float:
        return max(b - a for a, b in zip(self.arrivals, self.arrivals[1:], strict=False))


def prompt_of(tokens: int, vocabulary: int, seed: int) -> list[int]:
    """Random token ids, always others: nothing can be reused from an earlier run."""
    rng = random.Random(seed)
    return [rng.randrange(16, vocabulary) for _ in range(tokens)]


async def stream(client: httpx.AsyncClient, server: Server, prompt: list[int], tokens: int) -> Stream:
    """One greedy completion of exactly ``tokens`` tokens."""
    body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": True, **server.extra}
    if server.name.startswith("plait"):
        body["model"] = await _model(client, server)
    started = time.perf_counter()
    async with client.stream("POST", server.url + "/v1/completions", json=body, timeout=600) as response:
        if response.status_code != 200:
            raise RuntimeError(f"{server.name}: {(await response.aread()).decode()[:300]}")
        arrivals = [
            time.perf_counter() - started
            async for line in response.aiter_lines()
            if line.startswith("data: {") and json.loads(line[6:]).get("choices")
        ]
    return Stream(tuple(arrivals), tokens)


_models: dict[str, str] = {}


async def _model(client: httpx.AsyncClient, server: Server) -> str:
    if server.url not in _models:
        _models[server.url] = (await client.get(server.url + "/v1/models")).json()["data"][0]["id"]
    return _models[server.url]


async def single(server: Server, vocabulary: int, seed: int, tokens: int = 128) -> float:
    """Tokens a second of one stream, first token included."""
    async with httpx.AsyncClient() as client:
        result = await stream(client, server, prompt_of(32, vocabulary, seed), tokens)
    return tokens / result.total


async def concurrent(server: Server, vocabulary: int, seed: int, streams: int = 16, tokens: int = 96) -> float:
    """Tokens a second of that many streams together."""
    async with httpx.AsyncClient(limits=httpx.Limits(max_connections=None, max_keepalive_connections=0)) as client:
        prompts = [prompt_of(32, vocabulary, seed * 1000 + i) for i in range(streams)]
        await _warm(client, server)
        started = time.perf_counter()
        await asyncio.gather(*(stream(client, server, prompt, tokens) for prompt in prompts))
        return streams * tokens / (time.perf_counter() - started)


async def first_token(server: Server, vocabulary: int, seed: int, prompt: int = 2048) -> float:
    """Seconds to the first token of a long prompt."""
    async with httpx.AsyncClient() as client:
        return (await stream(client, server, prompt_of(prompt, vocabulary, seed), 1)).first


async def stall(server: Server, vocabulary: int, seed: int, prompt: int = 3000, tokens: int = 400) -> float:
    """Seconds: the longest pause of a running stream while a long prompt arrives and is answered."""
    async with httpx.AsyncClient() as client:
        await _warm(client, server)
        running = asyncio.create_task(stream(client, server, prompt_of(16, vocabulary, seed), tokens))
        await asyncio.sleep(0.5)
        await stream(client, server, prompt_of(prompt, vocabulary, seed + 1), 1)
        return (await running).longest_gap


async def _warm(client: httpx.AsyncClient, server: Server) -> None:
    await stream(client, server, [20, 21, 22], 2)
