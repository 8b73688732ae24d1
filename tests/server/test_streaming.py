"""The form of streams: order, usage, finish reasons, errors in the middle."""

import asyncio
from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from plait_engine.request import Request
from tests.server import sse
from tests.server.fake_engine import FakeEngine

CHAT = {"messages": [{"role": "user", "content": "hello"}]}
COMPLETION = {"prompt": "hello"}
ENDPOINTS = pytest.mark.parametrize(
    ("path", "body"), [("/v1/completions", COMPLETION), ("/v1/chat/completions", CHAT)], ids=["completion", "chat"]
)


async def stream(client: httpx.AsyncClient, path: str, body: dict[str, Any], **more: Any) -> sse.Stream:
    response = await client.post(path, json={"stream": True, "max_tokens": 6, **body, **more})
    assert response.status_code == 200, response.text
    return sse.parse(response.text)


@ENDPOINTS
async def test_usage_is_the_last_event_and_comes_only_when_asked(
    client: httpx.AsyncClient, path: str, body: dict[str, Any]
) -> None:
    plain = await stream(client, path, body)
    assert plain.done
    assert all(event["choices"] and "usage" not in event for event in plain.events)
    asked = await stream(client, path, body, stream_options={"include_usage": True})
    assert asked.done
    assert asked.events[-1]["choices"] == []
    assert asked.events[-1]["usage"]["completion_tokens"] == 6
    assert all(event["choices"] and event["usage"] is None for event in asked.events[:-1])


@ENDPOINTS
async def test_continuous_usage_grows_to_the_final_one(
    client: httpx.AsyncClient, path: str, body: dict[str, Any]
) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = (await stream(client, path, body, n=2, stream_options=options)).events
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == sorted(counts)
    assert counts[-1] == 12
    assert all(event["usage"]["total_tokens"] > event["usage"]["completion_tokens"] for event in events)


@ENDPOINTS
async def test_every_event_has_the_same_head(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> None:
    events = (await stream(client, path, body, n=2, stream_options={"include_usage": True})).events
    heads = {(event["id"], event["object"], event["created"], event["model"]) for event in events}
    assert len(heads) == 1
    assert heads.pop()[3] == "fake"


@ENDPOINTS
async def test_each_choice_has_exactly_one_finish_reason_and_nothing_after_it(
    client: httpx.AsyncClient, engine: FakeEngine, path: str, body: dict[str, Any]
) -> None:
    engine.tokens = lambda _, index: [50] * (2 + index)
    answer = await stream(client, path, body, n=4)
    assert answer.finish_reasons() == {0: ["stop"], 1: ["stop"], 2: ["stop"], 3: ["stop"]}
    for index in range(4):
        own = [choice for choice in answer.choices if choice["index"] == index]
        assert own[-1]["finish_reason"] == "stop"


@ENDPOINTS
async def test_the_first_event_belongs_to_choice_0_even_when_another_is_faster(
    client: httpx.AsyncClient, engine: FakeEngine, path: str, body: dict[str, Any]
) -> None:
    original = engine.submit

    async def late_first(request: Request) -> Any:
        batches = [deltas async for deltas in original(request)]
        yield [delta for delta in batches[0] if delta.index != 0]
        yield [delta for delta in batches[0] if delta.index == 0]
        for deltas in batches[1:]:
            yield deltas

    engine.submit = late_first  # type: ignore[method-assign]
    answer = await stream(client, path, body, n=3)
    assert answer.choices[0]["index"] == 0
    assert sorted(answer.texts()) == [0, 1, 2]


@ENDPOINTS
async def test_several_tokens_of_one_step_are_one_event(
    client: httpx.AsyncClient, engine: FakeEngine, path: str, body: dict[str, Any]
) -> None:
    single = await stream(client, path, body)
    engine.tokens_per_step = 3
    triple = await stream(client, path, body)
    assert triple.texts() == single.texts()
    assert len(triple.events) == len(single.events) - 4


@ENDPOINTS
async def test_an_error_in_the_middle_is_an_event_and_ends_the_stream(
    client: httpx.AsyncClient, engine: FakeEngine, path: str, body: dict[str, Any]
) -> None:
    engine.error_at_step = 2
    answer = await stream(client, path, body)
    assert answer.error is not None
    assert answer.error["message"] == "a kernel failed"
    assert answer.error.keys() == {"message", "type", "param", "code"}
    assert not answer.done
    assert answer.finish_reasons() == {}
    assert "error" not in (await stream_after(client, engine, path, body)).events[-1]


async def stream_after(client: httpx.AsyncClient, engine: FakeEngine, path: str, body: dict[str, Any]) -> sse.Stream:
    """The next request, with the engine in order again."""
    engine.error_at_step = None
    answer = await stream(client, path, body)
    assert answer.done
    return answer


@ENDPOINTS
async def test_an_engine_that_dies_in_the_middle_is_an_event_too(
    client: httpx.AsyncClient, engine: FakeEngine, path: str, body: dict[str, Any]
) -> None:
    engine.die_at_step = 2
    answer = await stream(client, path, body)
    assert answer.error is not None
    assert answer.error["code"] == "engine_dead"
    assert not answer.done


@ENDPOINTS
async def test_an_error_before_the_first_token_is_an_answer_with_its_status(
    client: httpx.AsyncClient, engine: FakeEngine, path: str, body: dict[str, Any]
) -> None:
    engine.refusal = "this can never fit; ask for less"
    response = await client.post(path, json={**body, "stream": True})
    assert response.status_code == 400
    assert response.json()["error"]["message"] == "this can never fit; ask for less"
    engine.refusal, engine.error_at_step = None, 0
    response = await client.post(path, json={**body, "stream": True})
    assert response.status_code == 500


@ENDPOINTS
@pytest.mark.parametrize("streaming", [True, False])
async def test_a_full_queue_is_503_and_says_when_to_come_back(
    client: httpx.AsyncClient, engine: FakeEngine, path: str, body: dict[str, Any], streaming: bool
) -> None:
    engine.full = True
    response = await client.post(path, json={**body, "stream": streaming})
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "queue_full"
    assert 0 < int(response.headers["retry-after"]) < 120
    assert (await client.get("/ready")).status_code == 200
    engine.full = False
    assert (await client.post(path, json={**body, "stream": streaming})).status_code == 200


async def test_one_failing_prompt_of_several_ends_the_others(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    original = engine.tokens
    engine.step_seconds = 0.001

    def tokens(request: Request, index: int) -> Sequence[int]:
        if len(request.prompt) == 3:
            engine.error_at_step = 2
        return original(request, index)

    engine.tokens = tokens
    response = await client.post("/v1/completions", json={"prompt": [[50] * 2, [50] * 3, [50] * 4], "max_tokens": 200})
    assert response.status_code == 500
    assert engine.sequences_running == 0


async def test_many_prompts_stream_at_once(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.step_seconds = 0.01
    started = asyncio.get_running_loop().time()
    prompts = [[50 + i] for i in range(40)]
    answer = await stream(client, "/v1/completions", {"prompt": prompts})
    assert asyncio.get_running_loop().time() - started < 2
    assert sorted(answer.texts()) == list(range(40))
    assert answer.done


@ENDPOINTS
async def test_cached_tokens_are_those_of_the_prompt_once(
    client: httpx.AsyncClient, engine: FakeEngine, path: str, body: dict[str, Any]
) -> None:
    engine.cached_tokens = 2
    answer = await stream(client, path, body, n=3, stream_options={"include_usage": True})
    usage = answer.usage
    assert usage is not None
    written = max(0, max(engine.requests[0].marks, default=0) - 2)
    assert usage["prompt_tokens_details"] == {"cached_tokens": 2, "cache_write_tokens": written}
    assert usage["prompt_tokens"] == len(engine.requests[0].prompt)
    assert usage["completion_tokens"] == 18
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
