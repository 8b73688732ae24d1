"""Asking a server for answers that follow grammars, many at a time."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from plait_server.bench.words import words

SAMPLING = {"max_tokens": 1_500, "temperature": 1.0, "frequency_penalty": 1.0}


async def answers(url: str, grammars: Sequence[Mapping[str, Any]], concurrency: int) -> list[dict[str, Any]]:
    """The choice that each request got; its ``error`` where it was refused.

    Sampled, so that answers wander, and less and less what they have said: a small model would not end a list.
    """
    places = asyncio.Semaphore(concurrency)
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=httpx.Limits(max_connections=None)) as client:

        async def ask(number: int, grammar: Mapping[str, Any]) -> dict[str, Any]:
            body = {"prompt": words(30, f"ask-{number}"), "seed": number, **SAMPLING}
            async with places:
                response = await client.post("/v1/completions", json=body | {"structured_outputs": dict(grammar)})
            document: dict[str, Any] = response.json()
            return document["choices"][0] if response.status_code == 200 else document

        return list(await asyncio.gather(*(ask(number, grammar) for number, grammar in enumerate(grammars))))
