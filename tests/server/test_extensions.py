"""The field ``plait``: checkpoints that are asked for, and what became of a prompt in the cache."""

import logging
from typing import Any

import httpx
import pytest

from tests.server.fake_engine import FakeEngine
from tests.server.sse import parse

PARTS: dict[str, Any] = {"type": "text", "text": "Long instructions. "}
MARKED = PARTS | {"prompt_cache_breakpoint": {"mode": "explicit"}}


async def complete(client: httpx.AsyncClient, **more: Any) -> httpx.Response:
    return await client.post("/v1/completions", json={"prompt": list(range(40, 60)), "max_tokens": 3} | more)


async def chat(client: httpx.AsyncClient, content: Any, **more: Any) -> httpx.Response:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": content}]
    return await client.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 3} | more)


async def test_offsets_become_marks_and_the_prompts_end_stays_one(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    assert (await complete(client, plait={"checkpoint": [7, 3, 7]})).status_code == 200
    assert engine.requests[0].marks == (3, 7, 19)
    assert (await complete(client)).status_code == 200
    assert engine.requests[1].marks == ()


async def test_offsets_are_added_to_a_chats_own_marks(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    await chat(client, "Hello")
    own = engine.requests[0].marks
    await chat(client, "Hello", plait={"checkpoint": [2]})
    assert own
    assert engine.requests[1].marks == tuple(sorted({2, *own}))


@pytest.mark.parametrize(
    "wrong",
    [[0], [-1], [20], [10**20], [True], ["3"], [2.5], 3, {"3": 1}, list(range(1, 18)), [None], [[1]]],
)
async def test_offsets_out_of_range_are_refused(client: httpx.AsyncClient, engine: FakeEngine, wrong: object) -> None:
    answer = await complete(client, plait={"checkpoint": wrong})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "plait.checkpoint"
    assert not engine.requests


async def test_offsets_must_be_in_the_shortest_of_several_prompts(client: httpx.AsyncClient) -> None:
    prompts = [[40] * 9, [41] * 5]
    assert (await complete(client, prompt=prompts, plait={"checkpoint": [4]})).status_code == 200
    assert (await complete(client, prompt=prompts, plait={"checkpoint": [5]})).status_code == 400


@pytest.mark.parametrize("wrong", [{"color": 1}, 3, [], {"explain_cache": 1}, {"pin": "no"}])
async def test_an_unknown_or_wrong_extension_is_refused(client: httpx.AsyncClient, wrong: object) -> None:
    assert (await complete(client, plait=wrong)).status_code == 400


async def test_a_breakpoint_marks_the_end_of_its_part(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    await chat(client, [MARKED, PARTS | {"text": "A question"}])
    await chat(client, [PARTS, PARTS | {"text": "A question"}])
    marked, plain = engine.requests
    assert marked.prompt == plain.prompt
    (place,) = set(marked.marks) - set(plain.marks)
    decoded = await client.post("/detokenize", json={"tokens": marked.prompt[:place]})
    assert decoded.json()["prompt"].rstrip().endswith("Long instructions.")


async def test_of_many_breakpoints_the_last_ones_count(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    parts = [PARTS | {"text": f"Part {place}! ", "prompt_cache_breakpoint": True} for place in range(8)]
    assert (await chat(client, parts)).status_code == 200
    assert 4 <= len(engine.requests[0].marks) <= 6


async def test_without_being_asked_nothing_is_explained(client: httpx.AsyncClient) -> None:
    assert "plait" not in (await complete(client)).json()
    assert "plait" not in (await chat(client, "Hello")).json()


async def test_an_explanation_says_what_was_reused_and_why_not_more(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    engine.cached_tokens, engine.known_beyond = 8, 4
    wanted = {"checkpoint": [10, 15], "explain_cache": True}
    whole = (await complete(client, plait=wanted, n=2)).json()
    assert whole["plait"]["cache"] == {
        "prompt_tokens": 20,
        "matched_tokens": 12,
        "effective_tokens": 8,
        "resume_point": 8,
        "reason": "no_checkpoint",
        "checkpoints": [10, 15, 19],
    }
    assert whole["usage"]["prompt_tokens_details"] == {"cached_tokens": 8, "cache_write_tokens": 11}
    stream = parse((await complete(client, plait=wanted, n=2, stream=True)).text)
    assert [event["plait"] for event in stream.events if "plait" in event] == [whole["plait"]]
    assert stream.done


async def test_a_chat_is_explained_too(client: httpx.AsyncClient) -> None:
    whole = (await chat(client, "Hello", plait={"explain_cache": True})).json()
    cache = whole["plait"]["cache"]
    assert (cache["matched_tokens"], cache["resume_point"], cache["reason"]) == (0, None, "no_match")
    answer = await chat(client, "Hello", plait={"explain_cache": True}, stream=True)
    stream = parse(answer.text)
    assert [event["plait"] for event in stream.events if "plait" in event] == [whole["plait"]]


async def test_several_prompts_are_not_explained_at_once(client: httpx.AsyncClient) -> None:
    answer = await complete(client, prompt=["a", "b"], plait={"explain_cache": True})
    assert answer.status_code == 400


async def test_a_debug_log_explains_every_prompt_without_its_text(
    client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "plait_server.part"):
        await complete(client, prompt="a text to be kept secret")
    assert "no_match" in caplog.text
    assert "secret" not in caplog.text
