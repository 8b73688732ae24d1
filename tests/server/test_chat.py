"""POST /v1/chat/completions: messages, templates, log-probabilities, streams."""

from dataclasses import replace
from typing import Any

import httpx
import pytest

from plait_server.text.chat_template import ChatTemplate
from plait_server.text.tokenizer import TextTokenizer
from tests.server import sse
from tests.server.conftest import front_of
from tests.server.fake_engine import FakeEngine
from tests.server.sse import joined

USER = {"role": "user", "content": "hello"}


async def chat(client: httpx.AsyncClient, messages: list[dict[str, Any]] | None = None, **body: Any) -> dict[str, Any]:
    response = await client.post("/v1/chat/completions", json={"messages": messages or [USER], **body})
    assert response.status_code == 200, response.text
    document: dict[str, Any] = response.json()
    return document


async def streamed(client: httpx.AsyncClient, **body: Any) -> sse.Stream:
    response = await client.post("/v1/chat/completions", json={"messages": [USER], "stream": True, **body})
    assert response.status_code == 200, response.text
    return sse.parse(response.text)


def prompt_text(engine: FakeEngine, tokenizer: TextTokenizer) -> str:
    return tokenizer.decode(engine.requests[-1].prompt)


async def test_messages_become_a_prompt_by_the_template(
    client: httpx.AsyncClient, engine: FakeEngine, tokenizer: TextTokenizer
) -> None:
    await chat(client, [{"role": "system", "content": "be brief"}, USER], max_tokens=1)
    expected = "<|start|>system<|mid|>be brief<|end|>\n<|start|>user<|mid|>hello<|end|>\n<|start|>assistant<|mid|>"
    assert prompt_text(engine, tokenizer) == expected
    assert engine.requests[0].prompt[0] == 1


async def test_parts_nulls_unknown_keys_and_developers_are_understood(
    client: httpx.AsyncClient, engine: FakeEngine, tokenizer: TextTokenizer
) -> None:
    parts = [{"type": "text", "text": "hel", "prompt_cache_breakpoint": True}, {"type": "text", "text": "lo"}]
    reply: dict[str, Any] = {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "tool_calls": None,
        "audio": None,
        "annotations": [],
    }
    await chat(client, [{"role": "developer", "content": "x"}, {"role": "user", "content": parts}, reply, USER])
    expected = "<|start|>system<|mid|>x<|end|>\n<|start|>user<|mid|>hello<|end|>\n<|start|>assistant<|mid|><|end|>\n"
    assert prompt_text(engine, tokenizer).startswith(expected)


async def test_a_reply_can_be_continued(
    client: httpx.AsyncClient, engine: FakeEngine, tokenizer: TextTokenizer
) -> None:
    await chat(client, [USER, {"role": "assistant", "content": "Once upon"}], continue_final_message=True)
    assert prompt_text(engine, tokenizer).endswith("<|start|>assistant<|mid|>Once upon")
    await chat(client, add_generation_prompt=False)
    assert prompt_text(engine, tokenizer).endswith("hello<|end|>\n")


async def test_without_a_limit_a_reply_may_fill_the_context(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    await chat(client)
    request = engine.requests[0]
    assert len(request.prompt) + request.sampling.max_tokens == engine.info.max_model_len


async def test_the_newer_name_of_the_limit_wins(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    await chat(client, max_tokens=5, max_completion_tokens=3)
    assert engine.requests[0].sampling.max_tokens == 3


async def test_log_probabilities_carry_bytes_and_the_identical_number(client: httpx.AsyncClient) -> None:
    document = await chat(client, max_tokens=8, logprobs=True, top_logprobs=20)
    content = document["choices"][0]["logprobs"]["content"]
    assert len(content) == 8
    assert b"".join(bytes(row["bytes"]) for row in content).decode() == document["choices"][0]["message"]["content"]
    for row in content:
        assert len(row["top_logprobs"]) == 20
        same = [top for top in row["top_logprobs"] if top["token"] == row["token"]]
        assert all(top["logprob"] == row["logprob"] and top["bytes"] == row["bytes"] for top in same)
    assert any(top["token"] == row["token"] for row in content for top in row["top_logprobs"])


async def test_log_probabilities_without_alternatives(client: httpx.AsyncClient) -> None:
    content = (await chat(client, max_tokens=2, logprobs=True))["choices"][0]["logprobs"]["content"]
    assert [row["top_logprobs"] for row in content] == [[], []]


async def test_half_a_character_is_written_as_its_bytes(
    client: httpx.AsyncClient, engine: FakeEngine, tokenizer: TextTokenizer
) -> None:
    single = {tokenizer.token_bytes(i): i for i in range(tokenizer.vocab_size)}
    ids = [single[bytes([byte])] for byte in "🦄".encode()]
    engine.always(ids)
    choice = (await chat(client, max_tokens=4, logprobs=True))["choices"][0]
    assert choice["message"]["content"] == "🦄"
    assert [row["token"] for row in choice["logprobs"]["content"]] == ["\\xf0", "\\x9f", "\\xa6", "\\x84"]
    assert bytes(joined(row["bytes"] for row in choice["logprobs"]["content"])).decode() == "🦄"
    stream = await streamed(client, max_tokens=4)
    assert stream.texts() == {0: "🦄"}


async def test_stream_and_whole_answer_carry_the_same(client: httpx.AsyncClient) -> None:
    body: dict[str, Any] = {"n": 3, "max_tokens": 9, "logprobs": True, "top_logprobs": 2}
    whole = await chat(client, **body)
    stream = await streamed(client, **body, stream_options={"include_usage": True})
    assert stream.done
    assert stream.texts() == {choice["index"]: choice["message"]["content"] for choice in whole["choices"]}
    assert stream.finish_reasons() == {0: ["length"], 1: ["length"], 2: ["length"]}
    assert stream.usage == whole["usage"]
    for choice in whole["choices"]:
        parts = [part["logprobs"] for part in stream.choices if part["index"] == choice["index"] and part["logprobs"]]
        assert joined(part["content"] for part in parts) == choice["logprobs"]["content"]


async def test_roles_come_first_once_per_choice_in_order(client: httpx.AsyncClient) -> None:
    stream = await streamed(client, n=4, max_tokens=3)
    roles = [(choice["index"], choice["delta"]["role"]) for choice in stream.choices if "role" in choice["delta"]]
    assert roles == [(index, "assistant") for index in range(4)]
    assert all("role" in choice["delta"] for choice in stream.choices[:4])


async def test_template_variables_reach_the_template(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    front = front_of(client)
    front.text = replace(
        front.text, template=ChatTemplate("{{ thinking }} {{ reasoning_effort }} {{ messages[0].name }}")
    )
    await chat(
        client,
        [{**USER, "name": "Ann"}],
        chat_template_kwargs={"thinking": False},
        reasoning_effort="low",
    )
    assert front.text.tokenizer.decode(engine.requests[0].prompt) == "False low Ann"


async def test_a_model_without_template_says_so(client: httpx.AsyncClient) -> None:
    front = front_of(client)
    front.text = replace(front.text, template=None)
    response = await client.post("/v1/chat/completions", json={"messages": [USER]})
    assert response.status_code == 400
    assert "/v1/completions" in response.json()["error"]["message"]


async def test_the_template_s_own_complaint_is_passed_on(client: httpx.AsyncClient) -> None:
    front = front_of(client)
    front.text = replace(front.text, template=ChatTemplate("{{ raise_exception('roles must alternate') }}"))
    response = await client.post("/v1/chat/completions", json={"messages": [USER, USER]})
    assert response.status_code == 400
    assert "roles must alternate" in response.json()["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
async def test_token_ids_are_returned_when_asked(client: httpx.AsyncClient, engine: FakeEngine, stream: bool) -> None:
    if stream:
        choices = (await streamed(client, return_token_ids=True, max_tokens=4)).choices
        ids = joined(choice["token_ids"] for choice in choices[1:])
        prompt = choices[0]["prompt_token_ids"]
    else:
        document = await chat(client, return_token_ids=True, max_tokens=4)
        ids, prompt = document["choices"][0]["token_ids"], document["prompt_token_ids"]
    assert ids == engine.tokens(engine.requests[0], 0)
    assert prompt == list(engine.requests[0].prompt)
