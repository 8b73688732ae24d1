"""Calls of tools in replies: what each format says, and the same however the text is cut."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait_server.reply.calls import CallReader
from plait_server.reply.events import Call, Content
from plait_server.reply.formats.choose import FORMATS, format_name
from tests.server.reply.replies import CASES, REPLIES, ROME, TOOLS, Reply, hermes

Said = tuple[str, list[tuple[str, dict[str, Any]]]]


def said(name: str, pieces: list[str], *, parallel: bool = True) -> Said:
    """Content and calls of a reply that comes in these pieces."""
    reader = CallReader(FORMATS[name](), TOOLS, parallel=parallel)
    events = [event for piece in pieces for event in reader.push(piece)] + reader.finish()
    calls = [(event.name, json.loads(event.arguments)) for event in events if isinstance(event, Call)]
    assert reader.count == len(calls)
    return "".join(event.text for event in events if isinstance(event, Content)), calls


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
    ]
    shards += ["<function=ping>", "</function>", "<parameter=a>", "a=1", *(reply.text for reply in REPLIES[name])]
    text = "".join(data.draw(st.lists(st.sampled_from(shards), max_size=12)))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert said(name, pieces) == said(name, [text])


def test_text_before_a_call_is_sent_before_the_call_is_complete() -> None:
    reader = CallReader(FORMATS["hermes"](), TOOLS)
    assert reader.push("Let me look. <tool") == [Content("Let me look.")]
    assert reader.push("_call>") == []
    assert reader.push("{}</tool_call>") == [Content(" <tool_call>{}</tool_call>")]


@pytest.mark.parametrize("pieces", [1, 7])
def test_without_parallel_calls_the_first_counts(pieces: int) -> None:
    text = "a " + hermes(ROME, ("ping", {})) + "\nb"
    size = -(-len(text) // pieces)
    cut = [text[start : start + size] for start in range(0, len(text), size)]
    assert said("hermes", cut, parallel=False) == ("ab", [ROME])


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
