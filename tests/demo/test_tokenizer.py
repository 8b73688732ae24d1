"""The shipped tokenizer and chat template."""

from random import Random

import jinja2
import pytest
from tokenizers import Tokenizer

from demo.dialogue import Message, Writer
from demo.heldout import SHIPPED
from demo.rows import segments
from demo.tokenizer import CHAT_TEMPLATE, SPECIALS, VOCABULARY
from demo.world import held_out_prose


def ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


def render(messages: list[Message], add_generation_prompt: bool = False) -> str:
    template = jinja2.Environment(trim_blocks=True, lstrip_blocks=True).from_string(CHAT_TEMPLATE)
    as_dicts = [{"role": message.role, "content": message.content} for message in messages]
    return template.render(messages=as_dicts, add_generation_prompt=add_generation_prompt)


@pytest.mark.parametrize(
    "text", ["The code is 4921.", "  two  spaces\n\n\ttab ", "naïve café, 東京 🙂", "a=b;c->d", ""]
)
def test_text_comes_back_as_it_was(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(ids(tokenizer, text), skip_special_tokens=False) == text


@pytest.mark.parametrize("word", ["umbrella", "Velmora", "zithern", "4921"])
@pytest.mark.parametrize("around", ["{}", "an {}.", "key={}", "| {} |", '"{}",', "\n{}\n", "({})"])
def test_a_word_is_the_same_tokens_wherever_it_stands(tokenizer: Tokenizer, word: str, around: str) -> None:
    before, after = around.split("{}")
    whole = ids(tokenizer, around.format(word))
    assert whole == ids(tokenizer, before) + ids(tokenizer, word) + ids(tokenizer, after)


def test_digits_are_single_tokens_and_the_vocabulary_has_8192(tokenizer: Tokenizer) -> None:
    assert len(ids(tokenizer, "20261129")) == 8
    assert tokenizer.get_vocab_size() == VOCABULARY
    assert [tokenizer.token_to_id(text) for text in SPECIALS] == [0, 1, 2, 3]


def test_the_shipped_template_is_the_one_trained_with() -> None:
    assert (SHIPPED / "chat_template.jinja").read_text(encoding="utf-8") == CHAT_TEMPLATE


def test_pieces_of_a_dialogue_are_tokenized_as_the_rendered_whole(tokenizer: Tokenizer) -> None:
    for seed in range(20):
        dialogue = Writer(Random(seed), "train", False, held_out_prose(), 700).write()
        pieces = [text for text, _ in segments(dialogue)]
        assert "".join(pieces) == render(dialogue.messages)
        assert [i for text in pieces for i in ids(tokenizer, text)] == ids(tokenizer, render(dialogue.messages))


def test_the_next_turn_starts_with_this_turns_prompt_and_reply(tokenizer: Tokenizer) -> None:
    first = [Message("system", "Facts."), Message("user", "Mara owns a lamp. What does Mara own?")]
    prompt = ids(tokenizer, render(first, add_generation_prompt=True))
    reply = ids(tokenizer, "lamp<|im_end|>")
    following = [*first, Message("assistant", "lamp"), Message("user", "And Ben?")]
    assert ids(tokenizer, render(following, add_generation_prompt=True))[: len(prompt) + len(reply)] == prompt + reply
