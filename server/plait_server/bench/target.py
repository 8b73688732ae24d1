"""The server under load: one streamed chat completion at a time, with the moments at which its pieces came."""

import json
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from plait_server.bench.words import PROBE_WORDS, words


class TargetFailed(Exception):
    """The server cannot be used at all; the message is for people."""


@dataclass
class Measured:
    """One request. Times are seconds."""

    started: float
    arrivals: list[float] = field(default_factory=list)
    """From its start, when pieces of the answer came."""
    seconds: float = 0.0
    text: str = ""
    usage: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None

    @property
    def input_tokens(self) -> int:
        return int(self.usage.get("prompt_tokens") or 0)

    @property
    def output_tokens(self) -> int:
        return int(self.usage.get("completion_tokens") or len(self.arrivals))

    @property
    def cached_tokens(self) -> int:
        return int((self.usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)


@dataclass(frozen=True)
class Target:
    client: httpx.AsyncClient
    model: str
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Fields of every request beside the usual ones."""

    async def ask(self, messages: list[dict[str, str]], max_tokens: int) -> Measured:
        """Never raises for what the server does: an error is part of what is measured."""
        body = {"model": self.model, "messages": messages, "max_tokens": max_tokens, "temperature": 0.0}
        body |= {"stream": True, "stream_options": {"include_usage": True}, **self.extra}
        measured = Measured(time.perf_counter())
        try:
            async with self.client.stream("POST", "/chat/completions", json=body) as response:
                if response.status_code != 200:
                    measured.error = f"status {response.status_code}: {short(await response.aread())}"
                else:
                    await read(response, measured)
        except httpx.HTTPError as error:
            measured.error = f"{type(error).__name__}: {error}"
        measured.seconds = time.perf_counter() - measured.started
        return measured


async def read(response: httpx.Response, measured: Measured) -> None:
    done = False
    async for event in events(response.aiter_bytes()):
        if event == b"[DONE]":
            done = True
            continue
        chunk = json.loads(event)
        if "error" in chunk:
            measured.error = f"in the stream: {short(json.dumps(chunk['error']).encode())}"
            return
        measured.usage = chunk.get("usage") or measured.usage
        for choice in chunk.get("choices", ()):
            delta = choice.get("delta", {})
            text = delta.get("content") or ""
            measured.text += text
            if text or delta.get("reasoning_content") or delta.get("reasoning") or delta.get("tool_calls"):
                measured.arrivals.append(time.perf_counter() - measured.started)
    if not done:
        measured.error = "the stream ended before its end"


async def events(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The data of server-sent events."""
    held = b""
    async for piece in pieces:
        *blocks, held = (held + piece).replace(b"\r\n", b"\n").split(b"\n\n")
        for block in blocks:
            for line in block.split(b"\n"):
                if line.startswith(b"data:"):
                    yield line.removeprefix(b"data:").strip()


async def model_of(client: httpx.AsyncClient) -> str:
    """The first model that the server names. Raises ``TargetFailed``."""
    try:
        response = await client.get("/models")
        response.raise_for_status()
        name: str = response.json()["data"][0]["id"]
        return name
    except (httpx.HTTPError, ValueError, KeyError, IndexError) as error:
        raise TargetFailed(f"{client.base_url}models does not say which model is served: {error}") from error


async def tokens_per_word(target: Target) -> float:
    """What a word of ours is for the server's tokenizer, by its own count. Raises ``TargetFailed``."""
    counts = []
    for count in (1, 1 + PROBE_WORDS):
        measured = await target.ask([{"role": "user", "content": words(count, "probe")}], 1)
        if measured.error is not None:
            raise TargetFailed(f"the server refuses a small request: {measured.error}")
        counts.append(measured.input_tokens)
    return (counts[1] - counts[0]) / PROBE_WORDS or 1.0


def short(body: bytes) -> str:
    return " ".join(body.decode(errors="replace").split())[:200]
