"""Held-out look-ups as JSON lines: what the trained model is judged on, here and through the server.

    python -m demo.heldout --n 500 --seed 1 --max-tokens 1500 --out held_out.jsonl

Needs nothing but this folder and the shipped tokenizer. Each line holds `messages` (a chat request, earlier replies
included), `expected` (the reply, letter for letter), `form`, `split`, `turns` and `length`:

- `split` "entity": names and values that training never saw, told and asked in sentences that it saw;
- `split` "phrasing": such names and values in sentences for telling and asking that training never saw;
- `turns` "single": one question after the context; "multi": earlier questions, facts or corrections between;
- `length`: the messages have at most this many tokens, and at least three quarters of it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

from tokenizers import Tokenizer

from demo.dialogue import BLOCKS, Dialogue, Message, Writer
from demo.world import held_out_prose

LENGTHS: Final = (256, 512, 1024, 1500, 2048, 4096, 8000)
SPLITS: Final = ("entity", "phrasing")
TURNS: Final = ("single", "multi")
UNJUDGED: Final = ("noted", "chat")  # fixed replies say nothing about looking up

SHIPPED: Final = Path("engine/plait_engine/demo")
TOKENS_PER_MESSAGE: Final = 5  # that the chat template adds, about
FIRST_CHARS_PER_TOKEN: Final = 1.9


@dataclass(frozen=True, slots=True)
class LookUp:
    """One judged reply: the request's messages, the expected reply, and what kind of look-up it is."""

    messages: tuple[Message, ...]
    expected: str
    form: str
    split: str
    turns: str
    length: int

    def as_json(self) -> dict[str, Any]:
        return {
            "messages": [{"role": message.role, "content": message.content} for message in self.messages],
            "expected": self.expected,
            "form": self.form,
            "split": self.split,
            "turns": self.turns,
            "length": self.length,
        }


def look_up(tokenizer: Tokenizer, seed: str, split: str, turns: str, length: int) -> LookUp:
    """The look-up that belongs to a seed; dialogues that do not fit the request are drawn again."""
    rng = Random(f"{seed} {split} {turns} {length}")
    blocks = [None, None, *BLOCKS]
    ratio = FIRST_CHARS_PER_TOKEN
    while True:
        questions = 1 if turns == "single" else rng.randrange(2, 6)
        block = rng.choice(blocks)
        chars = int(length * ratio)
        writer = Writer(rng, "held_out", split == "phrasing", held_out_prose(), chars, questions, block)
        found = last_look_up(writer.write(), split, turns, length)
        if found is None:
            continue
        tokens = token_count(tokenizer, found.messages)
        if 0.75 * length <= tokens <= length:
            return found
        # Follow the text's own density, so that the next try fits.
        ratio = min(4.0, max(1.2, ratio * 0.9 * length / tokens))


def token_count(tokenizer: Tokenizer, messages: tuple[Message, ...]) -> int:
    """Tokens of the rendered messages, about."""
    encodings = tokenizer.encode_batch_fast([message.content for message in messages], add_special_tokens=False)
    return sum(len(encoding.ids) + TOKENS_PER_MESSAGE for encoding in encodings)


def last_look_up(dialogue: Dialogue, split: str, turns: str, length: int) -> LookUp | None:
    """The dialogue's last judged reply with all before it, if it is of the kind asked for."""
    replies = [index for index, message in enumerate(dialogue.messages) if message.role == "assistant"]
    while replies and dialogue.forms[len(replies) - 1] in UNJUDGED:
        replies.pop()
    if not replies or (len(replies) == 1) != (turns == "single"):
        return None
    messages = tuple(dialogue.messages[: replies[-1]])
    return LookUp(
        messages, dialogue.messages[replies[-1]].content, dialogue.forms[len(replies) - 1], split, turns, length
    )


def look_ups(tokenizer: Tokenizer, count: int, seed: int, lengths: tuple[int, ...]) -> Iterator[LookUp]:
    """`count` look-ups, evenly over splits, single and multi-turn, and lengths."""
    kinds = [(split, turns, length) for length in lengths for split in SPLITS for turns in TURNS]
    for index in range(count):
        split, turns, length = kinds[index % len(kinds)]
        yield look_up(tokenizer, f"{seed} {index}", split, turns, length)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=280, help="how many look-ups")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--max-tokens", type=int, default=max(LENGTHS), help="leave out longer contexts")
    parser.add_argument("--min-tokens", type=int, default=min(LENGTHS), help="leave out shorter contexts")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, default=SHIPPED, help="folder with tokenizer.json")
    options = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(options.tokenizer / "tokenizer.json"))
    lengths = tuple(length for length in LENGTHS if options.min_tokens <= length <= options.max_tokens)
    with options.out.open("w", encoding="utf-8") as file:
        for found in look_ups(tokenizer, options.n, options.seed, lengths):
            file.write(json.dumps(found.as_json(), ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
