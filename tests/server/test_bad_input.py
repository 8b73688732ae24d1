"""Input that must not hurt: the right status, a message that helps, and a server that goes on serving."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.server import sse
from tests.server.fake_engine import FakeEngine
from tests.server.waiting import eventually

USER = {"role": "user", "content": "hello"}
MAX_ANSWER_BYTES = 4_000

BAD_FUNCTION = {"name": "f", "parameters": {"properties": {"a": {"type": 3}}}}
TOOL = {"type": "function", "function": {"name": "f"}}
DEEP = json.loads("[" * 500 + "]" * 500)
COMMON: list[tuple[str, dict[str, Any], str | None]] = [
    ("huge n", {"n": 10**9}, "n"),
    ("n 0", {"n": 0}, "n"),
    ("true as n", {"n": True}, "n"),
    ("n as text", {"n": "1"}, "n"),
    ("n as fraction", {"n": 1.5}, "n"),
    ("max_tokens 0", {"max_tokens": 0}, "max_tokens"),
    ("max_tokens -1", {"max_tokens": -1}, "max_tokens"),
    ("max_tokens 10^12", {"max_tokens": 10**12}, "max_tokens"),
    ("min_tokens over max_tokens", {"min_tokens": 9, "max_tokens": 8}, "min_tokens"),
    ("temperature -1", {"temperature": -1}, "temperature"),
    ("temperature true", {"temperature": True}, "temperature"),
    ("top_p 0", {"top_p": 0}, "top_p"),
    ("top_p 1.1", {"top_p": 1.1}, "top_p"),
    ("top_k -2", {"top_k": -2}, "top_k"),
    ("min_p 2", {"min_p": 2}, "min_p"),
    ("repetition_penalty 0", {"repetition_penalty": 0}, "repetition_penalty"),
    ("presence_penalty 3", {"presence_penalty": 3}, "presence_penalty"),
    ("a seed of 26 digits", {"seed": 12345678901234567890123456}, "seed"),
    ("logit_bias out of the vocabulary", {"logit_bias": {"512": 1}}, "logit_bias"),
    ("logit_bias with words", {"logit_bias": {"hello": 1}}, "logit_bias"),
    ("logit_bias negative id", {"logit_bias": {"-1": 1}}, "logit_bias"),
    ("logit_bias other digits", {"logit_bias": {"٣": 1}}, "logit_bias"),
    ("logit_bias too strong", {"logit_bias": {"5": 101}}, "logit_bias"),
    ("logit_bias true", {"logit_bias": {"5": True}}, "logit_bias"),
    ("logit_bias as list", {"logit_bias": [1]}, "logit_bias"),
    ("5,000 logit_bias entries", {"logit_bias": {str(i): 1 for i in range(5_000)}}, "logit_bias"),
    ("stop_token_ids out of the vocabulary", {"stop_token_ids": [512]}, "stop_token_ids"),
    ("stop_token_ids negative", {"stop_token_ids": [-1]}, "stop_token_ids"),
    ("stop_token_ids with true", {"stop_token_ids": [True]}, "stop_token_ids"),
    ("an empty stop string", {"stop": ""}, "stop"),
    ("10,000 stop strings", {"stop": ["x"] * 10_000}, "stop"),
    ("a stop string of 10,000 characters", {"stop": "x" * 10_000}, "stop"),
    ("a number as stop", {"stop": [1]}, "stop"),
    ("an empty cache_salt", {"cache_salt": ""}, "cache_salt"),
    ("a long cache_salt", {"cache_salt": "x" * 1_025}, "cache_salt"),
    ("an unknown parameter", {"no_such_thing": 1}, "no_such_thing"),
    ("an unknown parameter of null", {"no_such_thing": None}, "no_such_thing"),
    ("stream_options without stream", {"stream_options": {"include_usage": True}}, "stream_options"),
    ("unknown stream option", {"stream": True, "stream_options": {"x": 1}}, "stream_options.x"),
    ("prompt_logprobs in a stream", {"stream": True, "prompt_logprobs": 1}, "prompt_logprobs"),
    ("model as a number", {"model": 3}, "model"),
    ("metadata as a list", {"metadata": []}, "metadata"),
    ("stream as text", {"stream": "yes"}, "stream"),
]
COMPLETIONS: list[tuple[str, dict[str, Any], str | None]] = [
    ("an empty prompt", {"prompt": ""}, "prompt"),
    ("no prompts", {"prompt": []}, "prompt"),
    ("an empty prompt among ids", {"prompt": [[]]}, "prompt"),
    ("null", {"prompt": None}, "prompt"),
    ("a number", {"prompt": 5}, "prompt"),
    ("an id of -1", {"prompt": [-1]}, "prompt"),
    ("an id of 10^20", {"prompt": [10**20]}, "prompt"),
    ("an id behind the vocabulary", {"prompt": [512]}, "prompt"),
    ("an id behind the vocabulary in a list", {"prompt": [[1], [512]]}, "prompt"),
    ("mixed types", {"prompt": [1, "x"]}, "prompt"),
    ("mixed lists", {"prompt": [[1], "x"]}, "prompt"),
    ("booleans", {"prompt": [True]}, "prompt"),
    ("booleans in lists", {"prompt": [[1, False]]}, "prompt"),
    ("fractions", {"prompt": [1.5]}, "prompt"),
    ("10,000 wrong elements", {"prompt": [{"x": 1}] * 10_000}, "prompt"),
    ("prompts by the hundred thousand", {"prompt": [[5]] * 100_000}, "prompt"),
    ("one token too long", {"prompt": [50] * 257}, "prompt"),
    ("no room for an answer", {"prompt": [50] * 256}, "prompt"),
    ("n times prompts", {"prompt": ["x"] * 600, "n": 2}, "n"),
    ("logprobs 21", {"logprobs": 21}, "logprobs"),
    ("logprobs -1", {"logprobs": -1}, "logprobs"),
    ("logprobs true", {"logprobs": True}, "logprobs"),
    ("best_of below n", {"n": 3, "best_of": 2}, "best_of"),
    ("best_of of 10^9", {"best_of": 10**9}, "best_of"),
    ("best_of times prompts", {"prompt": ["x"] * 600, "best_of": 2}, "best_of"),
    ("best_of in a stream", {"best_of": 2, "stream": True}, "best_of"),
    ("suffix", {"suffix": "end"}, "suffix"),
    ("prompt_embeds", {"prompt_embeds": "AAAA"}, "prompt_embeds"),
    ("messages", {"messages": [USER]}, "messages"),
]
CHAT: list[tuple[str, dict[str, Any], str | None]] = [
    ("no messages", {"messages": []}, "messages"),
    ("null", {"messages": None}, "messages"),
    ("a string", {"messages": "hello"}, "messages"),
    ("an unknown role", {"messages": [{"role": "robot", "content": "x"}]}, "messages.0.role"),
    ("no content", {"messages": [{"role": "user"}]}, "messages.0"),
    ("content as a number", {"messages": [{"role": "user", "content": 1}]}, "messages.0.content"),
    ("8,000 wrong messages", {"messages": [1] * 8_000}, "messages.0"),
    (
        "an image",
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x/"}}]}]},
        "messages.0.content",
    ),
    ("a part without text", {"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages.0.content"),
    ("a function's result", {"messages": [{"role": "function", "content": "x", "name": "f"}]}, "messages"),
    ("a function call", {"messages": [{"role": "assistant", "function_call": {"name": "f"}}]}, "messages"),
    ("functions", {"functions": [{"name": "f"}]}, "functions"),
    ("a tool's result without content", {"messages": [{"role": "tool", "tool_call_id": "1"}]}, "messages.0"),
    *(
        (f"a call {name}", {"messages": [{"role": "assistant", "tool_calls": calls}]}, "messages.0.tool_calls")
        for name, calls in {
            "without function": [{"id": "1"}],
            "as a string": "f",
            "with a list as arguments": [{"function": {"name": "f", "arguments": "[]"}}],
        }.items()
    ),
    ("a call by the user", {"messages": [USER | {"tool_calls": [{"function": {"name": "f"}}]}]}, "messages.0"),
    *(
        (f"tools {name}", {"tools": tools}, "tools")
        for name, tools in {
            "as an object": {},
            "of another type": [{"type": "custom", "custom": {"name": "f"}}],
            "without a name": [{"type": "function", "function": {}}],
            "with a bad name": [{"type": "function", "function": {"name": "a b"}}],
            "with a long name": [{"type": "function", "function": {"name": "a" * 129}}],
            "with a list of parameters": [{"type": "function", "function": {"name": "f", "parameters": []}}],
            "twice": [{"type": "function", "function": {"name": "f"}}] * 2,
            "by the thousand": [{"type": "function", "function": {"name": f"f{i}"}} for i in range(1_000)],
            "nested deeply": [{"type": "function", "function": {"name": "f", "parameters": {"a": DEEP}}}],
        }.items()
    ),
    ("a choice without tools", {"tool_choice": "required"}, "tool_choice"),
    ("an unknown choice", {"tool_choice": "any"}, "tool_choice"),
    ("a choice of nothing", {"tool_choice": {"type": "function"}}, "tool_choice"),
    (
        "a choice of a tool that is not there",
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}},
        "tool_choice",
    ),
    ("a forced call and a grammar", {"tools": [TOOL], "tool_choice": "required", "guided_regex": "a"}, "tool_choice"),
    (
        "a forced call with a bad schema",
        {
            "tools": [
                {"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"type": 3}}}}}
            ],
            "tool_choice": "required",
        },
        "tools",
    ),
    ("messages by the ten thousand", {"messages": [USER] * 20_000}, "messages"),
    (
        "calls by the ten thousand",
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}] * 40_000}]},
        "messages",
    ),
    ("a chat template", {"chat_template": "{{ 1 }}"}, "chat_template"),
    ("reserved template arguments", {"chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs"),
    ("messages as template argument", {"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
    ("a template as template argument", {"chat_template_kwargs": {"chat_template": ""}}, "chat_template_kwargs"),
    ("top_logprobs -1", {"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
    ("top_logprobs 21", {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ("top_logprobs without logprobs", {"top_logprobs": 1}, "top_logprobs"),
    ("logprobs as a number", {"logprobs": 1}, "logprobs"),
    ("max_completion_tokens 0", {"max_completion_tokens": 0}, "max_completion_tokens"),
    ("modalities", {"modalities": ["text", "audio"]}, "modalities"),
    ("continue and open", {"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
    ("a prompt", {"prompt": "x"}, "prompt"),
]


def cases(endpoint: str) -> list[Any]:
    own = COMPLETIONS if endpoint == "completions" else CHAT
    return [pytest.param(body, param, id=name) for name, body, param in [*COMMON, *own]]


@pytest.fixture
async def served(client: httpx.AsyncClient, engine: FakeEngine) -> AsyncIterator[httpx.AsyncClient]:
    """Nothing that is sent costs a second of the processor, and a stream beside it comes to its end.

    Afterwards nothing runs, the engine has seen nothing of it, and a good request is answered.
    """
    engine.step_seconds = 0.001
    beside = {"prompt": "beside", "max_tokens": 20, "stream": True}
    stream = asyncio.create_task(client.post("/v1/completions", json=beside))
    await eventually(lambda: bool(engine.requests))
    started = time.process_time()
    yield client
    assert time.process_time() - started < 1
    assert len("".join(sse.parse((await stream).text).texts().values())) == 20
    assert len(engine.requests) == 1
    assert engine.sequences_running == 0
    assert (await client.post("/v1/completions", json={"prompt": "hello"})).status_code == 200
    assert (await client.get("/health")).status_code == 200


def refused(response: httpx.Response, status: int = 400) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert len(response.content) < MAX_ANSWER_BYTES
    assert response.headers["x-request-id"]
    document = response.json()
    assert document.keys() == {"error"}
    error: dict[str, Any] = document["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["message"]
    assert isinstance(error["code"], str)
    return error


@pytest.mark.parametrize(("body", "param"), cases("completions"))
async def test_completions_refuse(served: httpx.AsyncClient, body: dict[str, Any], param: str) -> None:
    error = refused(await served.post("/v1/completions", json={"prompt": "hello", **body}))
    assert error["param"] == param
    assert param.split(".")[-1] in error["message"] or param.split(".")[0] in error["message"]


@pytest.mark.parametrize(("body", "param"), cases("chat"))
async def test_chats_refuse(served: httpx.AsyncClient, body: dict[str, Any], param: str) -> None:
    error = refused(await served.post("/v1/chat/completions", json={"messages": [USER], **body}))
    assert error["param"] == param


BODIES = [
    pytest.param(b'{"prompt": "x", "n": NaN}', id="NaN"),
    pytest.param(b'{"prompt": "x", "temperature": NaN}', id="NaN as temperature"),
    pytest.param(b'{"prompt": "x", "temperature": Infinity}', id="Infinity"),
    pytest.param(b'{"prompt": "x", "temperature": 1e400}', id="1e400"),
    pytest.param(b'{"prompt": "x", "logit_bias": {"5": NaN}}', id="NaN as bias"),
    pytest.param(b'{"prompt": "\\ud800"}', id="lone surrogate in the prompt"),
    pytest.param(b'{"prompt": "x", "user": "\\ud800", "n": 0}', id="lone surrogate in an invalid request"),
    pytest.param(b'{"prompt": "x", "\\udfff": 1}', id="lone surrogate as a name"),
    pytest.param(b'{"prompt": "\xff\xfe"}', id="invalid UTF-8"),
    pytest.param(b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", id="100,000 deep"),
    pytest.param(b'{"prompt": ' + b"[" * 900 + b"]" * 900 + b"}", id="900 deep"),
    pytest.param(b'{"prompt": "x", "metadata": ' + b"[" * 900 + b"]" * 900 + b"}", id="900 deep, wrong type"),
    pytest.param(b'{"prompt": "x", "n": ' + b"9" * 5_000 + b"}", id="5,000 digits"),
    pytest.param(b"", id="empty"),
    pytest.param(b"null", id="null"),
    pytest.param(b"[]", id="a list"),
    pytest.param(b'"text"', id="a string"),
    pytest.param(b"{", id="half"),
    pytest.param(b'{"prompt": "x"} {}', id="two documents"),
]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"])
@pytest.mark.parametrize("body", BODIES)
async def test_bodies_that_are_no_good_json_are_refused(served: httpx.AsyncClient, path: str, body: bytes) -> None:
    refused(await served.post(path, content=body, headers={"content-type": "application/json"}))


async def test_deep_values_where_anything_is_allowed_are_no_danger(client: httpx.AsyncClient) -> None:
    body = b'{"prompt": "x", "metadata": {"a": ' + b"[" * 900 + b"]" * 900 + b"}}"
    response = await client.post("/v1/completions", content=body, headers={"content-type": "application/json"})
    assert response.status_code == 200


async def test_deep_values_for_a_template_are_refused(served: httpx.AsyncClient) -> None:
    deep = "[" * 900 + "]" * 900
    body = f'{{"messages": [{{"role": "user", "content": "x"}}], "chat_template_kwargs": {{"messages": {deep}}}}}'
    refused(await served.post("/v1/chat/completions", content=body, headers={"content-type": "application/json"}))


async def test_a_body_that_is_not_declared_as_json_says_so(served: httpx.AsyncClient) -> None:
    error = refused(await served.post("/v1/completions", content=json.dumps({"prompt": "x"})))
    assert "content-type: application/json" in error["message"]


async def test_too_long_says_how_long_the_context_is(served: httpx.AsyncClient) -> None:
    for body in ({"prompt": [50] * 257}, {"prompt": [50] * 256}, {"prompt": "x", "max_tokens": 10**12}):
        error = refused(await served.post("/v1/completions", json=body))
        assert "this model's maximum context length is 256 tokens" in error["message"]
        assert error["code"] == "context_length_exceeded"


async def test_the_longest_prompt_that_leaves_room_is_taken(client: httpx.AsyncClient) -> None:
    assert (await client.post("/v1/completions", json={"prompt": [50] * 255})).status_code == 200
    scored = {"prompt": [50] * 256, "echo": True, "max_tokens": 0, "logprobs": 1}
    assert (await client.post("/v1/completions", json=scored)).status_code == 200


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize"])
async def test_ten_megabytes_of_text_are_refused_before_tokenizing(
    served: httpx.AsyncClient, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: Any, **__: Any) -> list[int]:
        raise AssertionError("tokenized")

    text = "x " * 5_000_000
    with monkeypatch.context() as patch:
        patch.setattr("plait_server.text.tokenizer.TextTokenizer.encode_soon", never)
        body = {"messages": [{"role": "user", "content": text}]} if "chat" in path else {"prompt": text}
        error = refused(await served.post(path, json=body))
    assert error["code"] == "context_length_exceeded"


async def test_at_most_ten_findings_are_listed(served: httpx.AsyncClient) -> None:
    error = refused(await served.post("/v1/completions", json={"prompt": "x", **{f"field{i}": 1 for i in range(500)}}))
    assert error["message"].count("field") == 10
    assert "490 more" in error["message"]


async def test_long_names_are_cut(served: httpx.AsyncClient) -> None:
    refused(await served.post("/v1/completions", json={"prompt": "x", "y" * 1_000_000: 1}))
    refused(await served.post("/v1/completions", json={"prompt": "x", "model": "y" * 1_000_000}), 404)


async def test_an_unknown_model_is_404(served: httpx.AsyncClient) -> None:
    for path, body in (
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/chat/completions", {"messages": [USER]}),
        ("/tokenize", {"prompt": "x"}),
        ("/detokenize", {"tokens": [1]}),
    ):
        error = refused(await served.post(path, json={"model": "gpt-9", **body}), 404)
        assert (error["code"], error["param"]) == ("model_not_found", "model")


async def test_unknown_endpoints_and_methods_have_the_same_form(served: httpx.AsyncClient) -> None:
    assert refused(await served.get("/v1/nothing"), 404)["code"] == "not_found"
    assert refused(await served.get("/" + "x" * 10_000), 404)["code"] == "not_found"
    response = await served.get("/v1/completions")
    assert refused(response, 405)["code"] == "method_not_allowed"
    assert response.headers["allow"] == "POST"


async def test_what_nobody_foresaw_is_an_error_of_the_same_form(
    served: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("secret detail")

    with monkeypatch.context() as patch:
        patch.setattr("plait_server.front.FrontEnd.model", broken)
        error = refused(await served.post("/v1/completions", json={"prompt": "x"}), 500)
    assert "secret" not in error["message"]
    assert "secret detail" in caplog.text


@pytest.mark.parametrize(
    ("given", "echoed"),
    [("my-id.1", True), ("x" * 128, True), ("x" * 129, False), ("a b", False), ("", False), ("<script>", False)],
)
async def test_a_clean_request_id_is_echoed_and_another_is_replaced(
    client: httpx.AsyncClient, engine: FakeEngine, given: str, echoed: bool
) -> None:
    for path, body in (("/v1/completions", {"prompt": "x"}), ("/v1/completions", {"prompt": 5})):
        response = await client.post(path, json=body, headers={"x-request-id": given})
        assert (response.headers["x-request-id"] == given) is echoed
        assert response.headers["x-request-id"]
    assert engine.requests[0].id != given


async def test_two_requests_with_one_request_id_are_two_requests(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    for prompt in ("one", "two"):
        await client.post("/v1/completions", json={"prompt": prompt}, headers={"x-request-id": "same"})
    await client.post("/v1/completions", json={"prompt": "x"}, headers={"x-request-id": "z" * 1_000_000})
    assert len({request.id for request in engine.requests}) == 3
