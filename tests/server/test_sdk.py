"""The OpenAI SDK, as people use it."""

import openai

from tests.server.live_server import LiveServer


def test_a_completion_and_its_stream_are_the_same_text(sdk: openai.OpenAI) -> None:
    whole = sdk.completions.create(model="fake", prompt="The quick", max_tokens=12)
    stream = sdk.completions.create(model="fake", prompt="The quick", max_tokens=12, stream=True)
    chunks = list(stream)
    assert whole.choices[0].text
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason == "length"


def test_a_chat_and_its_stream_are_the_same_text(sdk: openai.OpenAI, live: LiveServer) -> None:
    messages = [{"role": "user", "content": "hello"}]
    whole = sdk.chat.completions.create(model="fake", messages=messages, max_tokens=12)
    chunks = list(sdk.chat.completions.create(model="fake", messages=messages, max_tokens=12, stream=True))
    assert whole.choices[0].message.content
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert live.engine.sequences_running == 0
