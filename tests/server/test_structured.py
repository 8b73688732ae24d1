"""What an answer must look like: every spelling of it, and what is refused before the engine hears of it."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from plait_engine.grammar import BadGrammar, GrammarTokenizer, Matcher
from plait_engine.messages import Add, decode_to_engine, encode
from plait_engine.request import Grammar, GrammarKind
from plait_server import grammars as grammars_module
from plait_server.app import create_app
from plait_server.config import ServerConfig
from plait_server.protocol.structured import MAX_GRAMMAR_BYTES, one_of
from plait_server.text.model_text import ModelText
from plait_server.text.tokenizer import TextTokenizer
from tests.server.fake_engine import FakeEngine
from tests.server.sse import parse

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
JSON = Grammar(GrammarKind.JSON, json.dumps(SCHEMA, separators=(",", ":")))
REGEX = Grammar(GrammarKind.REGEX, "[a-z]+")
CHOICE = Grammar(GrammarKind.LARK, 'start: "yes" | "no"')
LARK = Grammar(GrammarKind.LARK, 'start: "a" "b"*')
OBJECT = Grammar(GrammarKind.JSON, '{"type": "object"}')
SPELLINGS: list[tuple[dict[str, Any], Grammar]] = [
    ({"response_format": {"type": "json_object"}}, OBJECT),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}},
        JSON,
    ),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}}, OBJECT),
    ({"structured_outputs": {"json": SCHEMA}}, JSON),
    ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, JSON),
    ({"structured_outputs": {"json_object": True}}, OBJECT),
    ({"structured_outputs": {"regex": "[a-z]+", "disable_any_whitespace": True}}, REGEX),
    ({"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": False, "whitespace_pattern": None}}, JSON),
    ({"structured_outputs": {"regex": "[a-z]+"}}, REGEX),
    ({"structured_outputs": {"choice": ["yes", "no"]}}, CHOICE),
    ({"structured_outputs": {"grammar": LARK.text}}, LARK),
    ({"guided_json": SCHEMA}, JSON),
    ({"guided_regex": "[a-z]+"}, REGEX),
    ({"guided_choice": ["yes", "no"]}, CHOICE),
    ({"guided_grammar": LARK.text}, LARK),
    ({"guided_regex": "[a-z]+", "guided_json": None, "response_format": {"type": "text"}}, REGEX),
]


async def complete(client: httpx.AsyncClient, **more: Any) -> httpx.Response:
    return await client.post("/v1/completions", json={"prompt": "x", "max_tokens": 3} | more)


async def chat(client: httpx.AsyncClient, **more: Any) -> httpx.Response:
    messages = [{"role": "user", "content": "x"}]
    return await client.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 3} | more)


@pytest.mark.parametrize(("fields", "grammar"), SPELLINGS)
async def test_every_spelling_reaches_the_engine(
    client: httpx.AsyncClient, engine: FakeEngine, fields: dict[str, Any], grammar: Grammar
) -> None:
    for ask in (complete, chat):
        assert (await ask(client, **fields)).status_code == 200
    assert [request.grammar for request in engine.requests] == [grammar, grammar]
    (request, _) = engine.requests
    assert decode_to_engine(encode(Add(request))) == Add(request)


@pytest.mark.parametrize(
    ("fields", "written"),
    [
        ({}, '{ "a":\n7 }'),
        ({"disable_any_whitespace": True}, '{"a":7}'),
        ({"whitespace_pattern": "_?"}, '{_"a":_7}'),
        ({"json": None, "json_object": True, "disable_any_whitespace": True}, '{"b":[1,2]}'),
    ],
)
async def test_white_space_is_what_the_client_wants(
    client: httpx.AsyncClient, engine: FakeEngine, tokenizer: TextTokenizer, fields: dict[str, Any], written: str
) -> None:
    """Each writes its own text, and nobody the next one's."""
    assert (await complete(client, structured_outputs={"json": SCHEMA} | fields)).status_code == 200
    grammar = engine.requests[-1].grammar
    assert grammar is not None
    assert follows(grammar, written, tokenizer)
    assert not follows(grammar, written.replace("7", " 7\t").replace(",", " , \t"), tokenizer)


def follows(grammar: Grammar, text: str, tokenizer: TextTokenizer) -> bool:
    matcher = Matcher(grammar, GrammarTokenizer(tokenizer.as_json(), tokenizer.vocab_size, [0]))
    ids = tokenizer.encode(text, add_special_tokens=False)
    return matcher._matcher.validate_tokens(ids) == len(ids)


@pytest.mark.parametrize("fields", [{}, {"response_format": {"type": "text"}}, {"response_format": None}])
async def test_without_a_grammar_answers_are_free(
    client: httpx.AsyncClient, engine: FakeEngine, fields: dict[str, Any]
) -> None:
    assert (await complete(client, **fields)).status_code == 200
    assert engine.requests[0].grammar is None


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "unknown type": (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "x"}}}},
        "response_",
    ),
    "bad pattern": ({"guided_json": {"type": "string", "pattern": "(a"}}, "guided_json"),
    "cycle of references": (
        {"guided_json": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}},
        "guided_json",
    ),
    "reference to elsewhere": ({"guided_json": {"$ref": "http://127.0.0.1/schema"}}, "guided_json"),
    "reference to a file": ({"guided_json": {"$ref": "file:///etc/hostname"}}, "guided_json"),
    "unknown keyword": ({"structured_outputs": {"json": {"type": "array", "uniqueItems": True}}}, "structured_outputs"),
    "nothing fits": ({"guided_json": {"allOf": [{"type": "string"}, {"type": "null"}]}}, "guided_json"),
    "60,000 parentheses": ({"guided_regex": "(" * 30_000 + ")" * 30_000}, "guided_regex"),
    "negative maxItems": ({"guided_json": {"type": "array", "maxItems": -1}}, "guided_json"),
    "deep schema": ({"guided_json": json.loads('{"items":' * 300 + "{}" + "}" * 300)}, "guided_json"),
    "open group": ({"structured_outputs": {"regex": "(a"}}, "structured_outputs"),
    "look-ahead": ({"guided_regex": "(?=a)b"}, "guided_regex"),
    "matches nothing": ({"guided_regex": "[a&&b]"}, "guided_regex"),
    "not Lark": ({"guided_grammar": "root ::= x"}, "guided_grammar"),
    "unknown rule": ({"guided_grammar": "start: x"}, "guided_grammar"),
    "schema as a list": ({"guided_json": []}, "guided_json"),
    "schema as true": ({"guided_json": True}, "guided_json"),
    "schema as other text": ({"guided_json": "{"}, "guided_json"),
    "regex as a number": ({"guided_regex": 3}, "guided_regex"),
    "regex too long": ({"guided_regex": "a" * (MAX_GRAMMAR_BYTES + 1)}, "guided_regex"),
    "no choice": ({"guided_choice": []}, "guided_choice"),
    "an empty choice": ({"guided_choice": [""]}, "guided_choice"),
    "choices of numbers": ({"guided_choice": [1]}, "guided_choice"),
    "10,000 choices": ({"guided_choice": ["x"] * 10_000}, "guided_choice"),
    "nothing in it": ({"structured_outputs": {}}, "structured_outputs"),
    "two grammars": ({"guided_regex": "a", "guided_json": SCHEMA}, "structured_outputs"),
    "two in one": ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs"),
    "unknown field": ({"structured_outputs": {"regex": "a", "color": 1}}, "structured_outputs.color"),
    "unknown format": ({"response_format": {"type": "xml"}}, "response_format.type"),
    "format without its schema": ({"response_format": {"type": "json_schema"}}, "response_format"),
}


@pytest.mark.parametrize("name", BAD)
async def test_a_bad_grammar_is_400_for_its_request_only(
    client: httpx.AsyncClient, engine: FakeEngine, name: str
) -> None:
    """CASES 45: never an answer without the constraint."""
    fields, param = BAD[name]
    started = time.monotonic()
    answer = await complete(client, **fields)
    assert time.monotonic() - started < 5
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"].startswith(param)
    assert len(answer.content) < 3_000
    assert not engine.requests
    assert (await complete(client, guided_regex="a+")).status_code == 200


@pytest.fixture
async def hasty(
    engine: FakeEngine, text: ModelText, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[httpx.AsyncClient]:
    """A server that waits a fifth of a second for grammars, one of which takes two."""

    def slow(grammar: Grammar, tokenizer: GrammarTokenizer) -> Matcher:
        if grammar.text == "bomb":
            time.sleep(2)
        return Matcher(grammar, tokenizer)

    monkeypatch.setattr(grammars_module, "Matcher", slow)
    app = create_app(ServerConfig(served_names=("fake",), grammar_seconds=0.2), engine, text)
    async with app.router.lifespan_context(app):
        await app.state.front.health.settled.wait()
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://plait") as client:
            yield client


async def test_a_bomb_is_refused_within_its_deadline_while_others_stream(
    hasty: httpx.AsyncClient, engine: FakeEngine
) -> None:
    assert (await complete(hasty, guided_regex="warm")).status_code == 200
    engine.step_seconds = 0.01
    stream = asyncio.create_task(complete(hasty, stream=True, max_tokens=40))
    started = time.monotonic()
    answer = await complete(hasty, guided_regex="bomb")
    took = time.monotonic() - started
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "grammar_too_complex"
    assert took < 1.5
    assert (await complete(hasty, guided_regex="fine")).status_code == 200
    assert parse((await stream).text).done


async def test_a_known_grammar_is_not_compiled_again(hasty: httpx.AsyncClient, engine: FakeEngine) -> None:
    assert (await complete(hasty, guided_regex="bomb")).status_code == 400
    await asyncio.sleep(2.2)
    assert (await complete(hasty, guided_regex="bomb")).status_code == 200
    assert len(engine.requests) == 1


@pytest.mark.parametrize("bound", ["minItems", "maxItems"])
async def test_a_huge_array_costs_nothing_before_it_is_written(client: httpx.AsyncClient, bound: str) -> None:
    started = time.monotonic()
    assert (await complete(client, guided_json={"type": "array", bound: 10**9})).status_code == 200
    assert time.monotonic() - started < 2


NASTY = [
    r"(a{1,5000}b?){1,5000}",
    r"(.*a.{1,200}){1,200}",
    "(a|aa)+" * 300,
    ".*".join("abcdefghij" * 100),
    r"(a+)+b",
]


@pytest.mark.parametrize("pattern", NASTY)
def test_expensive_expressions_compile_soon_and_fail_or_follow_soon(tokenizer: TextTokenizer, pattern: str) -> None:
    """The limits hold: no mask takes long, and a matcher that gives up says so."""
    inner = GrammarTokenizer(tokenizer.as_json(), 512, [0])
    started = time.monotonic()
    matcher = Matcher(Grammar(GrammarKind.REGEX, pattern), inner)
    letter = tokenizer.encode("a", add_special_tokens=False)
    for _ in range(100):
        if matcher.error is not None or matcher.complete:
            break
        matcher.consume(letter)
        assert len(matcher.bits()) >= 64
    assert time.monotonic() - started < 10


@pytest.mark.parametrize("choice", ['a "quoted" \\ one', "new\nline", "日本", "/x/", "{}", "\u2028", "\x00"])
def test_a_choice_is_exactly_its_text(tokenizer: TextTokenizer, choice: str) -> None:
    inner = GrammarTokenizer(tokenizer.as_json(), 512, [0])
    matcher = Matcher(Grammar(GrammarKind.LARK, one_of((choice, "other"))), inner)
    matcher.consume(tokenizer.encode(choice, add_special_tokens=False))
    assert matcher.complete
    assert matcher.error is None


def test_messages_do_not_repeat_the_grammar(tokenizer: TextTokenizer) -> None:
    inner = GrammarTokenizer(tokenizer.as_json(), 512, [0])
    with pytest.raises(BadGrammar) as raised:
        Matcher(Grammar(GrammarKind.REGEX, "secret" * 1_000 + "("), inner)
    assert len(str(raised.value)) <= 300
