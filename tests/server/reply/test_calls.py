"""Calls of tools in replies: what each format says, and the same however the text is cut."""

import json
import time
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait_server.reply.calls import CallReader
from plait_server.reply.events import Call, Content, MoreArguments, whole_calls
from plait_server.reply.formats.base import Tool
from plait_server.reply.formats.choose import FORMATS, format_name
from tests.server.reply.replies import CASES, REPLIES, ROME, TOOLS, Reply, hermes

Said = tuple[str, list[tuple[str, dict[str, Any]]]]


def told(name: str, pieces: list[str], *, parallel: bool = True) -> tuple[str, list[Call]]:
    """Content and calls of a reply that comes in these pieces."""
    reader = CallReader(FORMATS[name](), TOOLS, parallel=parallel)
    events = [event for piece in pieces for event in reader.push(piece)] + reader.finish()
    calls = whole_calls(events)
    assert reader.count == len(calls)
    return "".join(event.text for event in events if isinstance(event, Content)), calls


def said(name: str, pieces: list[str], *, parallel: bool = True) -> Said:
    """The same with the arguments' values."""
    content, calls = told(name, pieces, parallel=parallel)
    return content, [(call.name, json.loads(call.arguments)) for call in calls]


@pytest.mark.parametrize(("name", "reply"), CASES, ids=str)
def test_what_a_reply_says(name: str, reply: Reply) -> None:
    assert said(name, [reply.text]) == (reply.content, reply.calls)


@pytest.mark.parametrize(("name", "reply"), CASES, ids=str)
def test_every_split_in_two_and_every_single_character_say_the_same(name: str, reply: Reply) -> None:
    expected = (reply.content, reply.calls)
    for place in range(len(reply.text) + 1):
        assert said(name, [reply.text[:place], reply.text[place:]]) == expected
    assert said(name, list(reply.text)) == expected


@pytest.mark.parametrize("name", FORMATS)
@given(data=st.data())
def test_whatever_is_written_says_the_same_however_it_is_cut(name: str, data: st.DataObject) -> None:
    style = FORMATS[name]
    shards = [
        style.opener,
        style.closer or "",
        *style.marks,
        *"{}[]()<>:,\"'\n ",
        "ping",
        "call:ping",
        '{"name": "ping"}',
        '{"name": "ping", "arguments": {',
        '{"name": "ping", "parameters": ',
        "\\",
        '\\"',
    ]
    shards += ["<function=ping>", "</function>", "<parameter=a>", "<parameter=city>", "</parameter>", "a=1"]
    shards += [
        "<function=get_weather><parameter=city>",
        "</parameter",
        "<function=store>",
        *(reply.text for reply in REPLIES[name]),
    ]
    text = "".join(data.draw(st.lists(st.sampled_from(shards), max_size=12)))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert told(name, pieces) == told(name, [text])


def test_text_before_a_call_is_sent_before_the_call_is_complete() -> None:
    reader = CallReader(FORMATS["hermes"](), TOOLS)
    assert reader.push("Let me look. <tool") == [Content("Let me look.")]
    assert reader.push("_call>") == []
    assert reader.push("{}</tool_call>") == [Content(" <tool_call>{}</tool_call>")]


BOTH = {"properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "note": {"type": "string"}}}
ARGUMENTS_EARLY = {
    "hermes": (
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Ro',
        '{"city": "Ro',
        'me",\n "days": 3}}\n</tool_call>',
    ),
    "qwen_xml": (
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nRo",
        '{"city": "Ro',
        "me\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
    ),
}


@pytest.mark.parametrize("name", ARGUMENTS_EARLY)
def test_arguments_are_told_while_they_are_written(name: str) -> None:
    begin, known, rest = ARGUMENTS_EARLY[name]
    reader = CallReader(FORMATS[name](), TOOLS)
    assert reader.push(begin) == [Call("get_weather", ""), MoreArguments(known)]
    events = [event for character in rest for event in reader.push(character)] + reader.finish()
    pieces = [event.text for event in events if isinstance(event, MoreArguments)]
    assert pieces[:2] == ["m", "e"]
    assert len(pieces) == len(events) >= 5
    assert json.loads(known + "".join(pieces)) == {"city": "Rome", "days": 3}


@pytest.mark.parametrize("name", ARGUMENTS_EARLY)
def test_a_reply_that_is_cut_off_has_the_call_as_far_as_it_goes(name: str) -> None:
    begin, known, _ = ARGUMENTS_EARLY[name]
    assert told(name, ["a " + begin]) == ("a", [Call("get_weather", known)])


TAGS = ["<", "</", "</parameter", "<parameter", "</function>", "</tool_call", "\n", " ", "x", '"', "\\", "é", "{", "]"]
VALUES = st.lists(st.sampled_from(TAGS), max_size=8).map("".join)


@given(city=VALUES, note=VALUES, days=st.integers() | st.lists(st.integers()), cuts=st.lists(st.integers(0, 400)))
def test_values_between_tags_are_what_was_written_between_them(
    city: str, note: str, days: Any, cuts: list[int]
) -> None:
    """Texts with anything but the tags that end them."""
    values = {"city": city, "days": days, "note": note}
    tags = "".join(
        f"<parameter={name}>\n{value if isinstance(value, str) else json.dumps(value)}\n</parameter>\n"
        for name, value in values.items()
    )
    text = f"<tool_call>\n<function=both>\n{tags}</function>\n</tool_call>"
    places = sorted({0, *(min(cut, len(text)) for cut in cuts), len(text)})
    reader = CallReader(FORMATS["qwen_xml"](), {"both": Tool("both", BOTH)})
    events = [event for a, b in pairwise(places) for event in reader.push(text[a:b])] + reader.finish()
    assert [(call.name, json.loads(call.arguments)) for call in whole_calls(events)] == [("both", values)]


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ('{"a": tru}', '{"a": tru}'),
        ('{"a": [1}', '{"a": [1}}'),
        ('{"a": [[1}', '{"a": [[1}}\n'),
        ('{"a": "b" ', '{"a": "b" }'),
        ('{"a": "x\n\ty"}', r'{"a": "x\n\ty"}'),
        (r'{"a": "\\", "b": "\"}"}', r'{"a": "\\", "b": "\"}"}'),
        ('{} , "id": {"b": 1}', "{}"),
    ],
)
def test_arguments_are_what_the_model_wrote_valid_or_not(written: str, arguments: str) -> None:
    """And what follows the block is read as ever."""
    block = f'<tool_call>\n{{"name": "ping", "arguments": {written}}}\n</tool_call>'
    content, calls = told("hermes", [block + "x" + hermes(ROME)])
    assert content == "x"
    assert calls[0] == Call("ping", arguments)
    assert (calls[1].name, json.loads(calls[1].arguments)) == ROME


@pytest.mark.parametrize("pieces", [1, 7])
def test_without_parallel_calls_the_first_counts(pieces: int) -> None:
    text = "a " + hermes(ROME, ("ping", {})) + "\nb"
    size = -(-len(text) // pieces)
    cut = [text[start : start + size] for start in range(0, len(text), size)]
    assert said("hermes", cut, parallel=False) == ("ab", [ROME])


def test_a_name_that_does_not_end_costs_no_more_with_every_piece() -> None:
    for name, begin in (("hermes", '<tool_call>{"name": "'), ("qwen_xml", "<tool_call><function=")):
        reader = CallReader(FORMATS[name](), TOOLS)
        started = time.process_time()
        for _ in range(8_000):
            assert reader.push(begin) == []
            begin = "x" * 8
        assert time.process_time() - started < 4


def test_deep_and_long_blocks_are_content_soon() -> None:
    for name, style in FORMATS.items():
        for filling in ("[" * 100_000, "{a:" * 50_000, "(" * 50_000, "-" * 100_000):
            text = style.opener + filling + (style.closer or "")
            assert said(name, [text]) == (text, [])


@pytest.mark.parametrize(
    ("template", "family", "name"),
    [
        ("{{ '<tool_call>' }}", "granitemoehybrid", "hermes"),
        ("<tool_call>\\n<function=example>", "qwen3_next", "qwen_xml"),
        ("<|tool_call|>", "granite", "granite"),
        ("<|tool_list_start|> <|tool_call_start|>", "lfm2", "lfm2"),
        ("List of tools: [", "lfm2", "lfm2"),
        ("<start_function_call>", "gemma3_text", "gemma"),
        ("<|tool_call>", "gemma4_text", "gemma4"),
        ("no tools", "gemma3_text", "gemma"),
        ("no tools", "qwen3_5_moe_text", "qwen_xml"),
        ("", "", "hermes"),
    ],
)
def test_the_template_tells_the_format_and_else_the_family(template: str, family: str, name: str) -> None:
    assert format_name(template, family) == name
