"""Answers of a real model that follow grammars it was never trained for."""

import asyncio
import json
import re
import time
from typing import Any

import httpx
import jsonschema
import pytest

from benchmarks.structured_output.asking import answers
from benchmarks.structured_output.regexes import regexes
from benchmarks.structured_output.schemas import schemas

CONCURRENCY = 16
QUICK = (24, 8)
ALL = (300, 50)


def complete(found: list[dict[str, Any]]) -> list[tuple[int, str]]:
    """Answers that came to their end, by number. None may have been refused, and all but a few must have ended."""
    assert not [answer for answer in found if "error" in answer]
    ended = [(number, answer["text"]) for number, answer in enumerate(found) if answer["finish_reason"] == "stop"]
    assert len(ended) >= 0.97 * len(found)
    return ended


async def check_schemas(demo: str, count: int) -> None:
    asked = schemas(count)
    found = await answers(demo, [{"json": schema} for schema in asked], CONCURRENCY)
    for number, text in complete(found):
        jsonschema.validate(json.loads(text), asked[number], jsonschema.Draft202012Validator)


async def check_regexes(demo: str, count: int) -> None:
    asked = regexes(count)
    found = await answers(demo, [{"regex": regex} for regex in asked], CONCURRENCY)
    for number, text in complete(found):
        assert re.fullmatch(asked[number], text), (asked[number], text)


async def test_some_generated_schemas_and_expressions_are_followed(demo: str) -> None:
    await check_schemas(demo, QUICK[0])
    await check_regexes(demo, QUICK[1])


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_three_hundred_generated_schemas_are_followed(demo: str) -> None:
    await check_schemas(demo, ALL[0])


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_fifty_generated_expressions_are_followed(demo: str) -> None:
    await check_regexes(demo, ALL[1])


FORM = r"name: [A-Z][a-z]{2,9}; payment_method: (credit_card|bank_transfer); signature_of_customer: none\."


@pytest.mark.parametrize("stop", [None, "method: ", "of_cus", "none."])
async def test_what_is_forced_comes_at_once_and_streams_say_the_same(demo: str, stop: str | None) -> None:
    """Also where a stop string ends in the middle of it: what is counted is what was needed."""
    body: dict[str, Any] = {"prompt": "x", "max_tokens": 90, "temperature": 0, "structured_outputs": {"regex": FORM}}
    body |= {} if stop is None else {"stop": stop}
    async with httpx.AsyncClient(base_url=demo, timeout=60) as client:
        whole = (await client.post("/v1/completions", json=body)).json()
        scored = (await client.post("/v1/completions", json=body | {"logprobs": 1})).json()
        streamed = body | {"stream": True, "stream_options": {"include_usage": True}}
        lines = (await client.post("/v1/completions", json=streamed)).text.splitlines()
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    choice = whole["choices"][0]
    assert re.fullmatch(FORM, choice["text"] + (stop or "")) or stop in ("method: ", "of_cus")
    assert "".join(event["choices"][0]["text"] for event in events[:-1]) == choice["text"]
    assert events[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    assert len(events) < 0.7 * whole["usage"]["completion_tokens"]
    assert scored["choices"][0]["text"] == choice["text"]
    assert scored["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    assert len(scored["choices"][0]["logprobs"]["tokens"]) == whole["usage"]["completion_tokens"]


BOMBS: dict[str, dict[str, Any]] = {
    "counted counts": {"regex": r"(a{1,5000}b?){1,5000}"},
    "overlapping windows": {"regex": r"(.*a.{1,200}){1,200}"},
    "many choices": {"regex": "|".join(f"(a{{{i}}}b?)*" for i in range(2_000))},
    "alternations in a row": {"regex": "(a|aa)+" * 300},
    "parentheses": {"regex": "(" * 30_000 + ")" * 30_000},
    "unicode classes": {"regex": r"(\p{L}{1,200}\p{N}{1,200}){1,200}"},
    "huge array": {"json": {"type": "array", "minItems": 10**9, "items": {"type": "array", "minItems": 10**9}}},
    "huge string": {"json": {"type": "string", "minLength": 10**9}},
    "many properties": {"json": {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(2_000)}}},
    "deep schema": {"json": json.loads('{"items":' * 200 + "{}" + "}" * 200)},
    "unions of unions": {"json": {"anyOf": [{"anyOf": [{"const": f"{i}-{j}"} for j in range(40)]} for i in range(40)]}},
    "rules in rules": {
        "grammar": "start: a0\n" + "\n".join(f"a{i}: a{i + 1} a{i + 1}" for i in range(500)) + '\na500: "x"'
    },
}


@pytest.mark.parametrize("name", BOMBS)
async def test_a_bomb_is_over_soon_and_a_running_stream_goes_on(demo: str, name: str) -> None:
    """Refused, ended with an error, or answered: within the time that any request may take here."""
    async with httpx.AsyncClient(base_url=demo, timeout=60) as client:
        gaps: list[float] = []

        async def stream() -> int:
            body = {"prompt": "a b c", "max_tokens": 150, "ignore_eos": True, "stream": True}
            last, pieces = time.monotonic(), 0
            async with client.stream("POST", "/v1/completions", json=body) as response:
                async for line in response.aiter_lines():
                    if line.startswith("data: {"):
                        now = time.monotonic()
                        gaps.append(now - last)
                        last, pieces = now, pieces + 1
            return pieces

        running = asyncio.create_task(stream())
        await asyncio.sleep(0.2)
        started = time.monotonic()
        answer = await client.post(
            "/v1/completions", json={"prompt": "x", "max_tokens": 20, "structured_outputs": BOMBS[name]}
        )
        took = time.monotonic() - started
        assert answer.status_code in (200, 400, 500), answer.text
        assert took < 8
        assert await running > 20
        assert max(gaps) < 3
        good = await client.post("/v1/completions", json={"prompt": "x", "structured_outputs": {"choice": ["yes"]}})
        assert good.json()["choices"][0]["text"] == "yes"
