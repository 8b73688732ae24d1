"""Grammars of replies: whatever they allow is a call, an answer, or reasoning before either, as was asked."""

import json
import random

import jsonschema
import pytest
from tokenizers import AddedToken

from plait_engine.request import Grammar, GrammarKind
from plait_server.reply.events import Call, Content, Reasoning, whole_calls
from plait_server.reply.formats.base import Tools
from plait_server.reply.formats.choose import FORMATS
from plait_server.reply.plan import ReplyPlan
from plait_server.text.tokenizer import TextTokenizer
from tests.server.reply.replies import PING, TOOLS
from tests.server.reply.walk import walk
from tests.server.tiny_text import byte_level_tokenizer

OBJECT = Grammar(GrammarKind.JSON, '{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]}')


def with_marks(*marks: str, special: bool = True) -> TextTokenizer:
    """The small tokenizer with tokens of their own for marks, as models have them."""
    tokenizer = byte_level_tokenizer()
    tokenizer.add_tokens([AddedToken(mark, special=special, normalized=False) for mark in marks])
    return TextTokenizer(tokenizer)


def plan(
    name: str, tools: Tools = TOOLS, *, forced: bool = True, parallel: bool = True, opened: bool = False
) -> ReplyPlan:
    return ReplyPlan(
        style=FORMATS[name](), tools=tools, forced=forced, parallel=parallel, reasons=opened, opened=opened
    )


def read(asked: ReplyPlan, text: str) -> tuple[str, str, list[Call]]:
    events = asked.reader().read(text, last=True)
    reasoning = "".join(event.text for event in events if isinstance(event, Reasoning))
    content = "".join(event.text for event in events if isinstance(event, Content))
    return reasoning, content, whole_calls(events)


@pytest.fixture(scope="module", params=[True, False], ids=["own tokens", "plain text"])
def any_tokenizer(request: pytest.FixtureRequest) -> TextTokenizer:
    if not request.param:
        return TextTokenizer(byte_level_tokenizer())
    marks = {mark for style in FORMATS.values() for mark in (style.opener, style.closer, *style.marks) if mark}
    return with_marks(*sorted(marks), "<think>", "</think>")


@pytest.mark.parametrize("name", FORMATS)
def test_forced_replies_are_calls_that_fit_their_schemas(name: str, any_tokenizer: TextTokenizer) -> None:
    asked = plan(name)
    grammar = asked.grammar(None, any_tokenizer)
    assert grammar is not None
    seen = set()
    for seed in range(25):
        text = walk(grammar, any_tokenizer, random.Random(seed))
        _, content, calls = read(asked, text)
        assert content == ""
        assert calls, text
        for call in calls:
            seen.add(call.name)
            jsonschema.validate(json.loads(call.arguments), {"type": "object", **TOOLS[call.name].parameters})
    assert seen == set(TOOLS)


@pytest.mark.parametrize("name", FORMATS)
def test_one_call_of_one_tool_can_be_asked_for(name: str, any_tokenizer: TextTokenizer) -> None:
    asked = plan(name, {"ping": PING}, parallel=False)
    grammar = asked.grammar(None, any_tokenizer)
    assert grammar is not None
    for seed in range(5):
        _, _, calls = read(asked, walk(grammar, any_tokenizer, random.Random(seed)))
        assert [call.name for call in calls] == ["ping"]


def test_reasoning_comes_before_what_is_forced(any_tokenizer: TextTokenizer) -> None:
    for forced, answer in ((True, None), (False, OBJECT)):
        asked = plan("hermes", {"ping": PING} if forced else {}, forced=forced, opened=True)
        grammar = asked.grammar(answer, any_tokenizer)
        assert grammar is not None
        for seed in range(8):
            reasoning, content, calls = read(asked, walk(grammar, any_tokenizer, random.Random(seed)))
            assert "<think>" not in reasoning
            assert (len(calls) >= 1) is forced
            assert forced or isinstance(json.loads(content)["a"], int)


@pytest.mark.parametrize(
    "answer",
    [OBJECT, Grammar(GrammarKind.REGEX, "[a-c]{3}|a/b\\/c"), Grammar(GrammarKind.LARK, 'start: x\nx: "yes" | "no"')],
    ids=lambda answer: answer.kind,
)
def test_an_answer_with_a_grammar_or_a_call_of_a_tool(any_tokenizer: TextTokenizer, answer: Grammar) -> None:
    asked = plan("hermes", {"ping": PING}, forced=False, parallel=False)
    grammar = asked.grammar(answer, any_tokenizer)
    assert grammar is not None
    kinds = set()
    for seed in range(30):
        text = walk(grammar, any_tokenizer, random.Random(seed))
        _, content, calls = read(asked, text)
        assert bool(content) != bool(calls)
        kinds.add(bool(calls))
        if calls:
            continue
        match answer.kind:
            case GrammarKind.JSON:
                assert isinstance(json.loads(content)["a"], int)
            case GrammarKind.REGEX:
                assert content in {"a/b/c"} or (len(content) == 3 and set(content) <= set("abc"))
            case GrammarKind.LARK:
                assert content in {"yes", "no"}
    assert kinds == {True, False}


def test_without_anything_forced_there_is_no_grammar(any_tokenizer: TextTokenizer) -> None:
    assert plan("hermes", forced=False).grammar(None, any_tokenizer) is None
    assert plan("hermes", {}, forced=False).grammar(OBJECT, any_tokenizer) is OBJECT


def test_marks_that_are_special_tokens_are_seen_only_where_they_are_looked_for() -> None:
    tokenizer = with_marks("<|tool_call_start|>", "<|tool_call_end|>")
    text = "<|tool_call_start|>[ping()]<|tool_call_end|><|end|>"
    ids = tokenizer.encode(text, add_special_tokens=False)
    shown = plan("lfm2", forced=False).shown_ids(tokenizer)
    assert "".join(map(tokenizer.detokenizer(shown=shown).push, ids)) == text.removesuffix("<|end|>")
    assert "".join(map(tokenizer.detokenizer().push, ids)) == "[ping()]"
    assert plan("lfm2", {}, forced=False).shown_ids(tokenizer) == frozenset()
