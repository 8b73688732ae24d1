"""The OpenAI SDK, as people use it, over a real socket."""

import asyncio
import inspect
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from plait_server.text.model_text import ModelText
from tests.server.fake_engine import FakeEngine, counting
from tests.server.live_server import LiveServer

MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def shared(text: ModelText) -> Iterator[LiveServer]:
    with LiveServer(FakeEngine(), text) as server:
        yield server


@pytest.fixture
def sdk(shared: LiveServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{shared.url}/v1", api_key="none", max_retries=0, timeout=20) as client:
        yield client
    assert shared.engine.sequences_running == 0


def test_a_completion_and_its_stream_are_the_same_text(sdk: openai.OpenAI) -> None:
    whole = sdk.completions.create(model="fake", prompt="The quick", max_tokens=12)
    chunks = list(sdk.completions.create(model="fake", prompt="The quick", max_tokens=12, stream=True))
    assert whole.choices[0].text
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason == "length"


def test_a_chat_with_everything(sdk: openai.OpenAI) -> None:
    options: dict[str, Any] = {"n": 3, "max_tokens": 12, "logprobs": True, "top_logprobs": 2, "seed": 1}
    whole = sdk.chat.completions.create(model="fake", messages=MESSAGES, **options)
    assert [choice.index for choice in whole.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in whole.choices}) == 3
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 36
    assert whole.usage.prompt_tokens_details is not None
    assert whole.usage.prompt_tokens_details.cached_tokens == 0
    assert whole.choices[0].logprobs is not None
    assert len(whole.choices[0].logprobs.content or ()) == 12


def test_a_streamed_chat_with_usage(sdk: openai.OpenAI) -> None:
    stream = sdk.chat.completions.create(
        model="fake", messages=MESSAGES, max_tokens=6, n=2, stream=True, stream_options={"include_usage": True}
    )
    *chunks, last = list(stream)
    assert all(chunk.usage is None for chunk in chunks)
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens == 12


def test_the_stream_helper_puts_the_same_message_together(sdk: openai.OpenAI, shared: LiveServer) -> None:
    shared.engine.always([50, 51, 52, 53])
    try:
        whole = sdk.chat.completions.create(model="fake", messages=MESSAGES, logprobs=True)
        with sdk.chat.completions.stream(model="fake", messages=MESSAGES, logprobs=True) as stream:
            pieces = [event.delta for event in stream if event.type == "content.delta"]
            final = stream.get_final_completion()
    finally:
        shared.engine.tokens = counting
    assert "".join(pieces) == final.choices[0].message.content == whole.choices[0].message.content
    assert final.choices[0].finish_reason == "stop"
    assert final.choices[0].logprobs is not None
    assert final.choices[0].logprobs.content is not None
    assert len(final.choices[0].logprobs.content) == 5


def test_stop_strings(sdk: openai.OpenAI) -> None:
    text = sdk.completions.create(model="fake", prompt="x", max_tokens=8).choices[0].text
    stopped = sdk.completions.create(model="fake", prompt="x", max_tokens=8, stop=[text[3:5]]).choices[0]
    assert (stopped.text, stopped.finish_reason) == (text[:3], "stop")


def test_models(sdk: openai.OpenAI) -> None:
    assert [model.id for model in sdk.models.list()] == ["fake"]
    assert sdk.models.retrieve("fake").id == "fake"
    with pytest.raises(openai.NotFoundError):
        sdk.models.retrieve("other")


def test_errors_become_the_sdk_s_own_exceptions(sdk: openai.OpenAI, shared: LiveServer) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        sdk.completions.create(model="fake", prompt=[50] * 300)
    assert (bad.value.code, bad.value.param) == ("context_length_exceeded", "prompt")
    with pytest.raises(openai.NotFoundError):
        sdk.completions.create(model="other", prompt="x")
    shared.engine.full = True
    try:
        with pytest.raises(openai.InternalServerError) as full:
            sdk.completions.create(model="fake", prompt="x")
    finally:
        shared.engine.full = False
    assert full.value.status_code == 503
    assert full.value.response.headers["retry-after"] == "7"


def test_the_sdk_retries_when_the_queue_was_full(shared: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        shared.engine.full = False

    monkeypatch.setattr("time.sleep", pause)
    shared.engine.full = True
    with openai.OpenAI(base_url=f"{shared.url}/v1", api_key="none", max_retries=1) as client:
        assert client.completions.create(model="fake", prompt="x").choices
    assert 7.0 in pauses


def test_an_error_in_mid_stream_is_raised(sdk: openai.OpenAI, shared: LiveServer) -> None:
    shared.engine.error_at_step = 2
    try:
        with pytest.raises(openai.APIError, match="a kernel failed"):
            list(sdk.chat.completions.create(model="fake", messages=MESSAGES, stream=True, max_tokens=9))
    finally:
        shared.engine.error_at_step = None


def test_leaving_a_stream_ends_its_work(sdk: openai.OpenAI, shared: LiveServer) -> None:
    shared.engine.step_seconds = 0.01
    try:
        stream = sdk.completions.create(model="fake", prompt="x", max_tokens=200, stream=True)
        next(iter(stream))
        assert shared.engine.sequences_running == 1
        stream.close()
        shared.wait(lambda: shared.engine.sequences_running == 0)
    finally:
        shared.engine.step_seconds = 0.0


async def test_the_asynchronous_client_with_many_requests_at_once(shared: LiveServer) -> None:
    async with openai.AsyncOpenAI(base_url=f"{shared.url}/v1", api_key="none", max_retries=0) as client:

        async def whole(prompt: str) -> str:
            return (await client.completions.create(model="fake", prompt=prompt)).choices[0].text

        async def streamed(prompt: str) -> str:
            stream = await client.completions.create(model="fake", prompt=prompt, stream=True)
            return "".join([chunk.choices[0].text async for chunk in stream])

        prompts = [f"prompt number {i}" for i in range(32)]
        texts = await asyncio.gather(*map(whole, prompts), *map(streamed, prompts))
    assert texts[:32] == texts[32:]
    assert len(set(texts)) > 8


@pytest.mark.parametrize("kind", ["chat", "completions"])
def test_no_parameter_of_the_sdk_is_unknown(sdk: openai.OpenAI, kind: str) -> None:
    """One that is not supported is refused as such."""
    create: Any = sdk.chat.completions.create if kind == "chat" else sdk.completions.create
    given: dict[str, Any] = {"messages": MESSAGES} if kind == "chat" else {"prompt": "a"}
    names = inspect.signature(create).parameters.keys() - {"extra_headers", "extra_query", "extra_body", "timeout"}
    assert len(names) > 15
    for name in names:
        with pytest.raises(openai.BadRequestError) as refused:
            create(**{"model": "fake", **given, name: {"x": [1.5]}, "extra_body": {"n": "wrong"}})
        assert f"{name}: this server knows no such parameter" not in refused.value.message


def test_what_the_engine_failed_on_is_not_tried_again(shared: LiveServer) -> None:
    shared.engine.error_at_step = 2
    shared.engine.requests.clear()
    try:
        patient = openai.OpenAI(base_url=f"{shared.url}/v1", api_key="none", max_retries=2, timeout=20)
        with patient as client, pytest.raises(openai.InternalServerError) as failed:
            client.completions.create(model="fake", prompt="x", max_tokens=9)
    finally:
        shared.engine.error_at_step = None
    assert failed.value.response.headers["x-should-retry"] == "false"
    assert len(shared.engine.requests) == 1
