"""LangChain's ChatOpenAI, unmodified, over a real socket."""

from collections.abc import Iterator
from typing import Any, Literal

import pytest
from langchain_core.messages import AIMessageChunk, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, SecretStr

from plait_server.text.model_text import ModelText
from plait_server.text.tokenizer import TextTokenizer
from tests.server.fake_engine import FakeEngine
from tests.server.live_server import LiveServer
from tests.server.reply.replies import hermes

TEXT = "It rains in Rome."


class Answer(BaseModel):
    """The weather."""

    city: Literal["Rome", "Oslo"]
    sure: bool


@tool
def look_up(name: str) -> str:
    """Where somebody lives."""
    return f"{name} lives in Teluk."


@pytest.fixture
def server(text: ModelText) -> Iterator[LiveServer]:
    with LiveServer(FakeEngine(max_model_len=8_192), text) as live:
        yield live


@pytest.fixture
def llm(server: LiveServer) -> ChatOpenAI:
    return ChatOpenAI(
        model="fake", base_url=f"{server.url}/v1", api_key=SecretStr("none"), temperature=0, max_retries=0
    )


def says(server: LiveServer, tokenizer: TextTokenizer, text: str) -> None:
    server.engine.always(tokenizer.encode(text, add_special_tokens=False))


def test_whole_streamed_and_many(llm: ChatOpenAI, server: LiveServer, tokenizer: TextTokenizer) -> None:
    says(server, tokenizer, TEXT)
    whole = llm.invoke("weather?")
    assert whole.content == TEXT
    assert whole.usage_metadata is not None
    assert whole.usage_metadata["output_tokens"] == len(tokenizer.encode(TEXT, add_special_tokens=False)) + 1
    assert "".join(str(chunk.content) for chunk in llm.stream("weather?")) == TEXT
    assert [message.content for message in llm.batch(["weather?"] * 5)] == [TEXT] * 5


async def test_asynchronous(llm: ChatOpenAI, server: LiveServer, tokenizer: TextTokenizer) -> None:
    says(server, tokenizer, TEXT)
    assert (await llm.ainvoke("weather?")).content == TEXT
    assert "".join([str(chunk.content) async for chunk in llm.astream("weather?")]) == TEXT


def test_tools_are_called_and_their_results_go_back(
    llm: ChatOpenAI, server: LiveServer, tokenizer: TextTokenizer
) -> None:
    says(server, tokenizer, hermes(("look_up", {"name": "Ravona"}), ("look_up", {"name": "Mirelo"})))
    bound = llm.bind_tools([look_up])
    message = bound.invoke("Where do they live?")
    assert [call["args"] for call in message.tool_calls] == [{"name": "Ravona"}, {"name": "Mirelo"}]
    streamed: Any = AIMessageChunk("")
    for chunk in bound.stream("Where do they live?"):
        streamed = streamed + chunk
    assert [call["args"] for call in streamed.tool_calls] == [call["args"] for call in message.tool_calls]
    results = [ToolMessage(look_up.invoke(call["args"]), tool_call_id=call["id"]) for call in message.tool_calls]
    says(server, tokenizer, "In Teluk.")
    assert bound.invoke([HumanMessage("Where do they live?"), message, *results]).content == "In Teluk."


@pytest.mark.parametrize("method", ["json_schema", "function_calling", "json_mode"])
def test_structured_output(llm: ChatOpenAI, server: LiveServer, tokenizer: TextTokenizer, method: Any) -> None:
    answer = {"city": "Rome", "sure": True}
    said = hermes(("Answer", answer)) if method == "function_calling" else '{"city": "Rome", "sure": true}'
    says(server, tokenizer, said)
    assert llm.with_structured_output(Answer, method=method).invoke("weather, as json?") == Answer(**answer)
    assert server.engine.requests[-1].grammar is not None
