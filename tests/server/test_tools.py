"""Tools through the whole server: into the prompt, forced or free, whole and streamed, and back as history."""

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest

from plait_engine.request import GrammarKind
from plait_server.app import create_app
from plait_server.config import ServerConfig
from plait_server.text.chat_template import ChatTemplate
from plait_server.text.model_text import ModelText
from plait_server.text.tokenizer import TextTokenizer
from tests.server import sse
from tests.server.fake_engine import FakeEngine
from tests.server.reply.replies import REPLIES, ROME, TOOLS, hermes

USER = {"role": "user", "content": "weather?"}
GIVEN = [
    {"type": "function", "function": {"name": tool.name, "parameters": tool.parameters}} for tool in TOOLS.values()
]
TEMPLATE = """{%- if tools %}<tools>{{ tools | tojson }}</tools>{% endif -%}
{%- for message in messages -%}
[{{ message.role }}]{{ message.content }}
{%- if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif -%}
{%- for call in message.tool_calls or [] %}<tool_call>{{ call.function.name }} {{ call.function.arguments | tojson }}
{%- endfor -%}
{%- endfor -%}
{%- if add_generation_prompt -%}[assistant]{% if thinking %}<think>
{% endif %}{%- endif -%}"""


@pytest.fixture
async def engine() -> FakeEngine:
    return FakeEngine(max_model_len=8_192)


@pytest.fixture
async def serve(engine: FakeEngine, text: ModelText) -> AsyncIterator[Callable[..., Any]]:
    """Makes clients of servers with the given options."""
    opened: list[Any] = []

    async def client(**options: Any) -> httpx.AsyncClient:
        model = replace(text, template=ChatTemplate(TEMPLATE))
        app = create_app(ServerConfig(served_names=("fake",), **options), engine, model)
        lifespan = app.router.lifespan_context(app)
        await lifespan.__aenter__()
        opened.append(lifespan)
        await app.state.front.health.settled.wait()
        return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://plait", timeout=20)

    yield client
    for lifespan in opened:
        await lifespan.__aexit__(None, None, None)


async def ask(client: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    request = {"messages": [USER], "max_tokens": 250, **body}
    answer = await client.post("/v1/chat/completions", json=request)
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


def put_together(stream: sse.Stream, index: int = 0) -> dict[str, Any]:
    """The message that a client makes of the deltas, checked as it comes."""
    message: dict[str, Any] = {"content": "", "reasoning": "", "calls": []}
    for choice in stream.choices:
        if choice["index"] != index:
            continue
        delta = choice["delta"]
        message["content"] += delta.get("content") or ""
        assert delta.get("reasoning") == delta.get("reasoning_content")
        message["reasoning"] += delta.get("reasoning") or ""
        for call in delta.get("tool_calls", ()):
            if "id" in call:
                assert call["index"] == len(message["calls"])
                assert call["type"] == "function"
                message["calls"].append([call["function"]["name"], ""])
            else:
                assert call.keys() == {"index", "function"}
                assert call["function"].keys() == {"arguments"}
            message["calls"][call["index"]][1] += call["function"]["arguments"]
    return message


def taken_apart(message: dict[str, Any]) -> dict[str, Any]:
    calls = message.get("tool_calls", [])
    assert len({call["id"] for call in calls}) == len(calls)
    assert message.get("reasoning") == message.get("reasoning_content")
    return {
        "content": message["content"] or "",
        "reasoning": message.get("reasoning") or "",
        "calls": [[call["function"]["name"], call["function"]["arguments"]] for call in calls],
    }


async def both_ways(client: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    """The first choice, whole; its stream must say the same."""
    whole = (await ask(client, **body))["choices"][0]
    request = {"messages": [USER], "max_tokens": 250, "stream": True, **body}
    stream = sse.parse((await client.post("/v1/chat/completions", json=request)).text)
    assert stream.done
    assert put_together(stream) == taken_apart(whole["message"])
    assert stream.finish_reasons()[0] == [whole["finish_reason"]]
    return whole


@pytest.mark.parametrize("tokens_per_step", [1, 5, 250])
@pytest.mark.parametrize("name", REPLIES)
async def test_replies_of_every_format_whole_and_streamed(
    serve: Callable[..., Any], engine: FakeEngine, tokenizer: TextTokenizer, name: str, tokens_per_step: int
) -> None:
    client = await serve(tool_format=name)
    engine.tokens_per_step = tokens_per_step
    for reply in REPLIES[name]:
        engine.always(tokenizer.encode(reply.text, add_special_tokens=False))
        choice = await both_ways(client, tools=GIVEN)
        said = taken_apart(choice["message"])
        assert said["content"] == reply.content
        assert [(name, json.loads(arguments)) for name, arguments in said["calls"]] == reply.calls
        assert choice["finish_reason"] == ("tool_calls" if reply.calls else "stop")
        assert (choice["message"]["content"] is None) is bool(reply.calls and not reply.content)


@pytest.mark.parametrize("fields", [{"tools": GIVEN, "tool_choice": "none"}, {}])
async def test_without_tools_to_call_a_reply_is_text(
    serve: Callable[..., Any], engine: FakeEngine, tokenizer: TextTokenizer, fields: dict[str, Any]
) -> None:
    engine.always(tokenizer.encode(hermes(ROME), add_special_tokens=False))
    choice = await both_ways(await serve(), **fields)
    assert choice["message"]["content"] == hermes(ROME)
    assert "tool_calls" not in choice["message"]


async def test_tools_reach_the_template_and_so_do_calls_and_results(
    serve: Callable[..., Any], engine: FakeEngine, tokenizer: TextTokenizer
) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "ping", "arguments": '{"a": [1]}'}}
    history = [
        USER,
        {"role": "assistant", "content": None, "reasoning": "Hm.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "pong"}]},
    ]
    await ask(await serve(), messages=history, tools=GIVEN[-1:], max_tokens=1)
    expected = (
        '<tools>[{"type": "function", "function": {"name": "ping", "parameters": {}}}]</tools>[user]weather?'
        '[assistant]<think>Hm.</think><tool_call>ping {"a": [1]}[tool]pong[assistant]'
    )
    assert tokenizer.decode(engine.requests[-1].prompt) == expected


async def test_a_call_that_went_wrong_is_history_as_the_model_wrote_it(
    serve: Callable[..., Any], engine: FakeEngine, tokenizer: TextTokenizer
) -> None:
    """Clients send back what they got, also what was cut off."""
    call = {"id": "call_1", "type": "function", "function": {"name": "ping", "arguments": '{"a": [1'}}
    history = [USER, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": "not valid"}]
    await ask(await serve(), messages=history, tools=GIVEN[-1:], max_tokens=1)
    assert '<tool_call>ping "{\\"a\\": [1"[tool]not valid' in tokenizer.decode(engine.requests[-1].prompt)


async def test_tokenize_counts_tools_too(serve: Callable[..., Any], engine: FakeEngine) -> None:
    client = await serve()
    counted = (await client.post("/tokenize", json={"messages": [USER], "tools": GIVEN})).json()["tokens"]
    await ask(client, tools=GIVEN, max_tokens=1)
    assert tuple(counted) == engine.requests[-1].prompt


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", ["get_weather", "store", "ping"]),
        ({"type": "function", "function": {"name": "ping"}}, ["ping"]),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "required",
                    "tools": [GIVEN[0], {"type": "function", "function": {"name": "ping"}}],
                },
            },
            ["get_weather", "ping"],
        ),
    ],
)
async def test_a_call_that_must_come_is_forced_by_a_grammar(
    serve: Callable[..., Any], engine: FakeEngine, choice: Any, names: list[str]
) -> None:
    await ask(await serve(), tools=GIVEN, tool_choice=choice)
    grammar = engine.requests[-1].grammar
    assert grammar is not None
    assert grammar.kind is GrammarKind.LARK
    assert [name for name in TOOLS if f'\\"{name}\\"' in grammar.text] == names
    assert ("block)*" in grammar.text) is (len(names) > 1)


async def test_one_call_at_a_time(serve: Callable[..., Any], engine: FakeEngine, tokenizer: TextTokenizer) -> None:
    engine.always(tokenizer.encode(hermes(ROME, ("ping", {})), add_special_tokens=False))
    client = await serve()
    assert len((await both_ways(client, tools=GIVEN))["message"]["tool_calls"]) == 2
    assert len((await both_ways(client, tools=GIVEN, parallel_tool_calls=False))["message"]["tool_calls"]) == 1
    await ask(client, tools=GIVEN, parallel_tool_calls=False, tool_choice="required")
    assert engine.requests[-1].grammar is not None
    assert ")*" not in engine.requests[-1].grammar.text.partition("\n")[0]


async def test_a_format_of_answers_leaves_room_for_calls(serve: Callable[..., Any], engine: FakeEngine) -> None:
    client = await serve()
    answer = {"response_format": {"type": "json_object"}, "tools": GIVEN}
    await ask(client, **answer)
    assert "start: (calls | answer)" in str(engine.requests[-1].grammar)
    await ask(client, **answer, tool_choice="required")
    assert "start: (calls)" in str(engine.requests[-1].grammar)
    await ask(client, **answer, tool_choice="none")
    assert engine.requests[-1].grammar is not None
    assert engine.requests[-1].grammar.kind is GrammarKind.JSON


async def test_n_choices_have_calls_of_their_own(
    serve: Callable[..., Any], engine: FakeEngine, tokenizer: TextTokenizer
) -> None:
    texts = [hermes(("ping", {"n": 0})), "no call", hermes(("ping", {"n": 2}), ("ping", {"n": 3}))]
    engine.tokens = lambda _, index: tokenizer.encode(texts[index], add_special_tokens=False)
    request = {"messages": [USER], "max_tokens": 200, "tools": GIVEN, "n": 3}
    client = await serve()
    whole = await ask(client, **request)
    stream = sse.parse((await client.post("/v1/chat/completions", json={**request, "stream": True})).text)
    for choice in whole["choices"]:
        assert put_together(stream, choice["index"]) == taken_apart(choice["message"])
    assert [choice["finish_reason"] for choice in whole["choices"]] == ["tool_calls", "stop", "tool_calls"]
    assert stream.finish_reasons() == {0: ["tool_calls"], 1: ["stop"], 2: ["tool_calls"]}


async def test_a_call_that_was_cut_off_is_text_or_half_a_call_and_says_length(
    serve: Callable[..., Any], engine: FakeEngine, tokenizer: TextTokenizer
) -> None:
    ids = tokenizer.encode(hermes(ROME), add_special_tokens=False)
    engine.always(ids)
    client = await serve()
    head = tokenizer.encode('<tool_call>\n{"name": "ge', add_special_tokens=False)
    choice = await both_ways(client, tools=GIVEN, max_tokens=len(head))
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"].startswith("<tool_call>")
    choice = await both_ways(client, tools=GIVEN, max_tokens=len(ids) - 20)
    assert choice["finish_reason"] == "length"
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "get_weather"
    assert json.dumps(ROME[1]).startswith(call["function"]["arguments"])


async def test_log_probabilities_and_ids_cover_every_token_of_a_call(
    serve: Callable[..., Any], engine: FakeEngine, tokenizer: TextTokenizer
) -> None:
    ids = tokenizer.encode("So: " + hermes(ROME), add_special_tokens=False)
    engine.always(ids)
    client = await serve()
    body = {"tools": GIVEN, "logprobs": True, "return_token_ids": True}
    whole = await both_ways(client, **body)
    stream = sse.parse(
        (
            await client.post(
                "/v1/chat/completions", json={"messages": [USER], "max_tokens": 250, "stream": True, **body}
            )
        ).text
    )
    assert sse.joined([choice.get("token_ids", []) for choice in stream.choices]) == whole["token_ids"] == [*ids, 0]
    rows = sse.joined([choice["logprobs"]["content"] for choice in stream.choices if choice["logprobs"]])
    assert rows == whole["logprobs"]["content"]
    assert len(rows) == len(ids) + 1


@pytest.mark.parametrize("tokens_per_step", [1, 4])
@pytest.mark.parametrize("thinking", [True, False])
async def test_reasoning_is_a_field_of_its_own(
    serve: Callable[..., Any], engine: FakeEngine, tokenizer: TextTokenizer, tokens_per_step: int, thinking: bool
) -> None:
    text = ("" if thinking else "<think>\n") + "Let me see.\n</think>\n\nIt rains.\n" + hermes(("ping", {}))
    engine.always(tokenizer.encode(text, add_special_tokens=False))
    engine.tokens_per_step = tokens_per_step
    choice = await both_ways(await serve(), tools=GIVEN, chat_template_kwargs={"thinking": thinking})
    assert taken_apart(choice["message"]) == {
        "content": "It rains.",
        "reasoning": "Let me see.",
        "calls": [["ping", "{}"]],
    }


async def test_reasoning_can_be_left_in_the_text(
    serve: Callable[..., Any], engine: FakeEngine, tokenizer: TextTokenizer
) -> None:
    engine.always(tokenizer.encode("<think>a</think>b", add_special_tokens=False))
    choice = await both_ways(await serve(reasoning_format="none"))
    assert choice["message"]["content"] == "<think>a</think>b"
    assert "reasoning" not in choice["message"]


async def test_a_grammar_begins_behind_the_reasoning_that_the_prompt_opened(
    serve: Callable[..., Any], engine: FakeEngine
) -> None:
    client = await serve()
    for thinking in (True, False):
        kwargs = {"thinking": thinking}
        await ask(client, chat_template_kwargs=kwargs, response_format={"type": "json_object"})
        assert ("reasoning" in str(engine.requests[-1].grammar)) is thinking
