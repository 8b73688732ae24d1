"""A chat prompt's marks: where the system prompt ends, and just before the assistant opener."""

import pytest

from plait_server.text.chat_template import ChatTemplate
from plait_server.text.marks import ChatMarks
from plait_server.text.tokenizer import TextTokenizer

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
FORGETFUL = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' %}{{ m.content.split('</think>')[-1] }}{% else %}{{ m.content }}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)
"""Drops the reasoning of replies, as many templates do."""
TALK = [
    {"role": "system", "content": "You answer from what you are told."},
    {"role": "user", "content": "The door is blue. What is blue?"},
]


@pytest.mark.parametrize("source", [CHATML, FORGETFUL])
def test_the_stable_point_is_a_prefix_of_the_next_turn(source: str, tokenizer: TextTokenizer) -> None:
    template = ChatTemplate(source)
    text = template.render(TALK)
    ids = tokenizer.encode(text, add_special_tokens=False)
    marks = ChatMarks(template, tokenizer).of(TALK, {}, text, ids)
    reply = {"role": "assistant", "content": "<think>Doors.</think>The door."}
    later = template.render([*TALK, reply, {"role": "user", "content": "And red?"}])
    assert tokenizer.encode(later, add_special_tokens=False)[: marks[-1]] == ids[: marks[-1]]
    assert tokenizer.decode(ids[marks[-1] :]) == text[len(template.render(TALK, add_generation_prompt=False)) :]


def test_other_conversations_share_the_system_prompt_up_to_its_mark(tokenizer: TextTokenizer) -> None:
    template = ChatTemplate(CHATML)
    text = template.render(TALK)
    ids = tokenizer.encode(text, add_special_tokens=False)
    marks = ChatMarks(template, tokenizer).of(TALK, {}, text, ids)
    assert len(marks) == 2
    other = template.render([TALK[0], {"role": "user", "content": "Good morning"}])
    assert tokenizer.encode(other, add_special_tokens=False)[: marks[0]] == ids[: marks[0]]
    beginning = template.render(TALK[:1], add_generation_prompt=False)
    assert tokenizer.decode(ids[: marks[0]]).startswith(beginning), "and the opener of a question, which is the same"


def test_without_a_system_prompt_there_is_only_the_stable_point(tokenizer: TextTokenizer) -> None:
    template = ChatTemplate(CHATML)
    text = template.render(TALK[1:])
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert len(ChatMarks(template, tokenizer).of(TALK[1:], {}, text, ids)) == 1


def test_a_template_that_takes_no_part_of_a_conversation_gives_no_mark(tokenizer: TextTokenizer) -> None:
    strict = "{% if not add_generation_prompt %}{{ raise_exception('never') }}{% endif %}" + CHATML
    template = ChatTemplate(strict)
    text = template.render(TALK)
    assert ChatMarks(template, tokenizer).of(TALK, {}, text, tokenizer.encode(text, add_special_tokens=False)) == ()
