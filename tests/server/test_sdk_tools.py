"""Tools and reasoning with the OpenAI SDK, its helpers among it."""

import json
from collections.abc import Iterator
from dataclasses import replace

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam
from pydantic import BaseModel

from plait_server.text.chat_template import ChatTemplate
from plait_server.text.model_text import ModelText
from plait_server.text.tokenizer import TextTokenizer
from tests.server.fake_engine import FakeEngine
from tests.server.live_server import LiveServer
from tests.server.reply.replies import hermes
from tests.server.test_tools import TEMPLATE

MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "weather?"}]


class GetWeather(BaseModel):
    city: str
    days: int = 1


TOOL: ChatCompletionToolParam = openai.pydantic_function_tool(GetWeather, name="get_weather")
CALLS = hermes(("get_weather", {"city": "Rome", "days": 3}), ("get_weather", {"city": "Oslo", "days": 1}))


@pytest.fixture
def sdk(text: ModelText, tokenizer: TextTokenizer) -> Iterator[openai.OpenAI]:
    engine = FakeEngine(max_model_len=4_096)
    engine.always(tokenizer.encode("<think>\nHm.\n</think>\nTwo.\n" + CALLS, add_special_tokens=False))
    with (
        LiveServer(engine, replace(text, template=ChatTemplate(TEMPLATE))) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=20) as client,
    ):
        yield client


def test_a_round_of_calls_and_results(sdk: openai.OpenAI) -> None:
    choice = sdk.chat.completions.create(model="fake", messages=MESSAGES, tools=[TOOL]).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Two."
    assert choice.message.model_extra == {"reasoning": "Hm.", "reasoning_content": "Hm."}
    assert choice.message.tool_calls is not None
    results: list[ChatCompletionMessageParam] = [
        {"role": "tool", "tool_call_id": call.id, "content": "sun"} for call in choice.message.tool_calls
    ]
    history: list[ChatCompletionMessageParam] = [*MESSAGES, choice.message.to_dict(), *results]  # type: ignore[list-item]
    assert sdk.chat.completions.create(model="fake", messages=history, tools=[TOOL]).choices


def test_parse_gives_arguments_as_objects(sdk: openai.OpenAI) -> None:
    message = sdk.chat.completions.parse(model="fake", messages=MESSAGES, tools=[TOOL]).choices[0].message
    assert message.tool_calls is not None
    parsed = [call.function.parsed_arguments for call in message.tool_calls]
    assert parsed == [GetWeather(city="Rome", days=3), GetWeather(city="Oslo", days=1)]


def test_the_stream_helper_puts_the_same_calls_together(sdk: openai.OpenAI) -> None:
    with sdk.chat.completions.stream(model="fake", messages=MESSAGES, tools=[TOOL]) as stream:
        done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
        final = stream.get_final_completion().choices[0]
    assert [json.loads(event.arguments)["city"] for event in done] == ["Rome", "Oslo"]
    assert final.finish_reason == "tool_calls"
    assert final.message.content == "Two."
    assert final.message.tool_calls is not None
    assert [call.function.name for call in final.message.tool_calls] == ["get_weather"] * 2
    assert len({call.id for call in final.message.tool_calls}) == 2
