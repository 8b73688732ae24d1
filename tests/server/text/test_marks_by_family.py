"""Case 17, for each family: the next turn's prompt is not the last one and its reply, and yet it goes on from there."""

from collections.abc import Sequence
from typing import Any

import pytest

from plait_server.text.chat_template import ChatTemplate
from plait_server.text.marks import ChatMarks
from plait_server.text.tokenizer import TextTokenizer
from tests.engine.reuse.client import Client
from tests.engine.tiny import VOCAB
from tests.server.text.templates import FAMILIES, MARKS_OF_TURNS, SPECIAL_TOKENS
from tests.server.tiny_text import byte_level_tokenizer

Talk = list[dict[str, Any]]
OPENER_TOKENS = 40
"""The longest there is, with a token for each letter."""
SYSTEM = {
    "role": "system",
    "content": "You answer from what you are told, in one sentence, and say so when you cannot",
}
FIRST = {"role": "user", "content": "The door is blue. What is blue?"}
REPLY = {"role": "assistant", "content": "<think>\nDoors, then.\n</think>\n\nThe door is blue. "}
SECOND = {"role": "user", "content": "  And what is red?\n"}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
TALKS: dict[str, Talk] = {
    "no system": [FIRST],
    "system": [SYSTEM, FIRST],
    "third turn": [SYSTEM, FIRST, REPLY, SECOND],
    "line breaks": [SYSTEM, {"role": "user", "content": "\n\nWhat?\n\n"}],
}
KWARGS: dict[str, dict[str, Any]] = {"plain": {}, "tools": {"tools": [TOOL]}, "no thinking": {"enable_thinking": False}}


@pytest.fixture(scope="module", params=["turns are tokens", "turns are letters"])
def words(request: pytest.FixtureRequest) -> TextTokenizer:
    tokenizer = byte_level_tokenizer()
    if request.param == "turns are tokens":
        tokenizer.add_special_tokens(MARKS_OF_TURNS)
    return TextTokenizer(tokenizer)


def common(a: Sequence[int], b: Sequence[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


class Family:
    def __init__(self, name: str, words: TextTokenizer, kwargs: dict[str, Any]) -> None:
        self.template = ChatTemplate(FAMILIES[name], SPECIAL_TOKENS)
        self.marks = ChatMarks(self.template, words)
        self.words, self.kwargs = words, kwargs

    def ids(self, talk: Talk) -> list[int]:
        return self.words.encode(self.template.render(talk, kwargs=self.kwargs), add_special_tokens=False)

    def marks_of(self, talk: Talk) -> tuple[int, ...]:
        return self.marks.of(talk, self.kwargs, self.template.render(talk, kwargs=self.kwargs), self.ids(talk))


@pytest.mark.parametrize("kwargs", KWARGS)
@pytest.mark.parametrize("talk", TALKS)
@pytest.mark.parametrize("name", FAMILIES)
def test_the_next_turn_keeps_all_up_to_the_stable_point_and_little_more(
    name: str, talk: str, kwargs: str, words: TextTokenizer
) -> None:
    family, asked = Family(name, words, KWARGS[kwargs]), TALKS[talk]
    ids, marks = family.ids(asked), family.marks_of(asked)
    follow_up: Talk = [*asked, REPLY, SECOND]
    kept = common(ids, family.ids(follow_up))
    assert marks[-1] <= kept
    # Some openers stay, as "assistant" and a line break do; others, that begin the reasoning, do not.
    assert kept - marks[-1] <= OPENER_TOKENS
    # And a third turn from the second, as far as what was said does not change any more.
    again = family.ids([*follow_up, {"role": "assistant", "content": "Nothing."}, FIRST])
    assert family.marks_of(follow_up)[-1] <= len(family.ids(follow_up))
    assert marks[-1] <= common(ids, again)


@pytest.mark.parametrize("kwargs", KWARGS)
@pytest.mark.parametrize("name", FAMILIES)
def test_other_conversations_share_the_system_prompt_up_to_its_mark(
    name: str, kwargs: str, words: TextTokenizer
) -> None:
    family = Family(name, words, KWARGS[kwargs])
    talk, other = [SYSTEM, FIRST], [SYSTEM, {"role": "user", "content": "Good morning"}]
    marks, shared = family.marks_of(talk), common(family.ids(talk), family.ids(other))
    assert marks[0] <= shared
    assert shared - marks[0] <= 2
    assert len(marks) == 2
    assert family.marks_of(other)[0] == marks[0]


@pytest.mark.parametrize("name", ["granite4", "qwen3", "qwen3_5", "lfm2"])
def test_tools_are_a_beginning_that_conversations_share_without_a_system_prompt(
    name: str, words: TextTokenizer
) -> None:
    family = Family(name, words, KWARGS["tools"])
    marks, shared = family.marks_of([FIRST]), common(family.ids([FIRST]), family.ids([SECOND]))
    assert 0 <= shared - marks[0] <= 2
    assert len(marks) == 2


def test_where_the_last_turn_is_left_open_the_stable_point_is_found_from_the_next(words: TextTokenizer) -> None:
    family = Family("closed_late", words, {})
    closed = family.template.render([FIRST], add_generation_prompt=False)
    (stable,) = family.marks_of([FIRST])
    assert words.decode(family.ids([FIRST])[:stable]).startswith(closed)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_second_turn_resumes_where_the_first_one_was_stable(name: str, words: TextTokenizer) -> None:
    """In an engine. The model is tiny, so token ids are folded into its vocabulary."""
    family = Family(name, words, {})
    asked: Talk = [{"role": "system", "content": "B."}, {"role": "user", "content": "B?"}]
    client = Client("granite", max_model_len=256)

    def folded(ids: Sequence[int]) -> tuple[int, ...]:
        return tuple(3 + id % (VOCAB - 3) for id in ids)

    first = family.ids(asked)
    marks = family.marks_of(asked)
    client.ask(folded(first), marks=marks)
    later: Talk = [*asked, {"role": "assistant", "content": "N."}, {"role": "user", "content": "R?"}]
    assert client.ask(folded(family.ids(later)), marks=family.marks_of(later)) >= marks[-1] > 0
