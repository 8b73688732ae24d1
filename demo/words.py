"""The committed word lists, and the line between what training may see and what only tests may."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Literal
from zlib import crc32

WORDS_DIR = Path(__file__).parent / "words"

Split = Literal["train", "held_out"]

HELD_OUT_SHARE = 10  # one string in this many


def is_held_out(text: str) -> bool:
    """Whether a value belongs to the held-out tenth. By checksum, so no list has to be kept."""
    return crc32(text.encode()) % HELD_OUT_SHARE == 0


@cache
def word_list(name: str) -> tuple[str, ...]:
    """All lines of `demo/words/NAME.txt`."""
    return tuple((WORDS_DIR / f"{name}.txt").read_text(encoding="utf-8").split("\n")[:-1])


@cache
def words(name: str, split: Split) -> tuple[str, ...]:
    """The words of one list that `split` may use: the two splits share none."""
    return tuple(word for word in word_list(name) if is_held_out(word) == (split == "held_out"))
