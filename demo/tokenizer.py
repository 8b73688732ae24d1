"""The demo's tokenizer and chat template.

    python -m demo.tokenizer --corpus DIR --out DIR

Byte-level BPE with 8,192 entries. One rule keeps a word the same tokens wherever it stands, so that a value can be
copied from the middle of a sentence to the start of a reply, or out of `key=value`: **a space is a token of its
own**, except in front of a few dozen function words, which are never values. Digits, punctuation and line breaks
are single tokens.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Final

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from demo.dialogue import Writer
from demo.words import word_list

VOCABULARY: Final = 8192
END_OF_TEXT, PAD, TURN_START, TURN_END = "<|endoftext|>", "<|pad|>", "<|im_start|>", "<|im_end|>"
SPECIALS: Final = (END_OF_TEXT, PAD, TURN_START, TURN_END)
END_OF_TEXT_ID, PAD_ID, TURN_START_ID, TURN_END_ID = range(4)

FUNCTION_WORDS: Final = word_list("function_word")
PATTERN: Final = (
    rf" (?:{'|'.join(sorted(FUNCTION_WORDS, key=len, reverse=True))})(?!\p{{L}})"
    r"|\p{L}+|\p{N}|\n| +|-+|[^\s\p{L}\p{N}]|\s"
)

# Messages are rendered as they are, so the next turn's prompt starts with this turn's prompt and reply, token for
# token. Content may also come as a list of text parts.
CHAT_TEMPLATE: Final = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message['role'] + '\\n' -}}"
    "{%- if message['content'] is string -%}{{- message['content'] -}}"
    "{%- else -%}{%- for part in message['content'] or [] -%}{{- part['text'] -}}{%- endfor -%}{%- endif -%}"
    "{{- '<|im_end|>\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)

TRAINING_DIALOGUES: Final = 4000
TRAINING_PROSE_CHARS: Final = 9_000_000


def blank() -> Tokenizer:
    """An untrained tokenizer with the splitting rule."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def train(texts: Iterator[str], vocabulary: int = VOCABULARY) -> Tokenizer:
    """A tokenizer learned from `texts`; the special tokens get the ids 0 to 3."""
    tokenizer = blank()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[AddedToken(text, special=True, normalized=False) for text in SPECIALS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def corpus_texts(folder: Path) -> Iterator[str]:
    """A sample of the prose, and generated dialogues of the training split."""
    lines = [line for path in sorted(folder.glob("*.txt")) for line in path.read_text(encoding="utf-8").splitlines()]
    rng = Random(1)
    rng.shuffle(lines)
    size = 0
    for line in lines:
        if size > TRAINING_PROSE_CHARS:
            break
        size += len(line)
        yield line
    prose = tuple(line for line in lines[:1000] if len(line) < 300)
    for _ in range(TRAINING_DIALOGUES):
        for message in Writer(rng, "train", False, prose, 2500).write().messages:
            yield message.content


def save(tokenizer: Tokenizer, folder: Path) -> None:
    """The tokenizer's part of a Hugging Face model folder."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": END_OF_TEXT,
        "eos_token": TURN_END,
        "pad_token": PAD,
        "model_max_length": 8192,
        "clean_up_tokenization_spaces": False,
        "add_prefix_space": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True, help="what demo.corpus wrote")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    save(train(corpus_texts(options.corpus)), options.out)


if __name__ == "__main__":
    main()
