"""Reasoning apart from the rest, the same however the text is cut."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait_server.reply.reasoning import ReasoningSplit


def split(pieces: list[str], *, opened: bool) -> tuple[str, str]:
    reader = ReasoningSplit(opened=opened)
    parts = [*map(reader.push, pieces), reader.finish()]
    return "".join(reasoning for reasoning, _ in parts), "".join(rest for _, rest in parts)


CASES = [
    ("<think>\nHm.\n\nYes.\n</think>\n\nAnswer.\n", False, "Hm.\n\nYes.", "Answer.\n"),
    ("\n<think>a</think>b", False, "a", "b"),
    ("Hm.\n</think>\n\nAnswer.", True, "Hm.", "Answer."),
    ("<think>\nHm.</think>Answer.", True, "Hm.", "Answer."),
    ("Answer, no reasoning.", False, "", "Answer, no reasoning."),
    ("  <b>", False, "", "  <b>"),
    ("Never ending <thought", True, "Never ending <thought", ""),
    ("<think>Never ending </thin", False, "Never ending </thin", ""),
    ("<think></think>", False, "", ""),
    ("</think>now", True, "", "now"),
    ("a</think>b</think>c<think>d", True, "a", "b</think>c<think>d"),
    ("<thi", False, "", "<thi"),
    ("", False, "", ""),
    ("", True, "", ""),
    (" ", True, "", ""),
]


@pytest.mark.parametrize(("text", "opened", "reasoning", "rest"), CASES)
def test_reasoning_is_what_stands_between_the_marks_however_it_is_cut(
    text: str, opened: bool, reasoning: str, rest: str
) -> None:
    assert split([text], opened=opened) == (reasoning, rest)
    assert split(list(text), opened=opened) == (reasoning, rest)
    for place in range(len(text) + 1):
        assert split([text[:place], text[place:]], opened=opened) == (reasoning, rest)


@given(
    pieces=st.lists(
        st.sampled_from(["<think>", "</think>", "<", "/", "think", ">", " ", "\n", "a", "</", "<th", "ink>"])
    ),
    cuts=st.lists(st.integers(0, 60), max_size=8),
    opened=st.booleans(),
)
def test_whatever_is_written_is_split_in_one_way(pieces: list[str], cuts: list[int], opened: bool) -> None:
    text = "".join(pieces)
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    cut_up = [text[start:end] for start, end in pairwise(places)]
    assert split(cut_up, opened=opened) == split([text], opened=opened)


def test_reasoning_is_sent_as_it_comes() -> None:
    reader = ReasoningSplit(opened=True)
    assert reader.push("One ") == ("One", "")
    assert reader.push("two") == (" two", "")
