"""Made-up proper names, so that no answer can come from memory.

Names are built from syllables. A tenth of the syllables is reserved: every held-out name carries at least one of
them and no training name does.
"""

from __future__ import annotations

from random import Random
from typing import Final

from demo.words import Split, word_list

ONSETS: Final = word_list("onset")
VOWELS: Final = word_list("vowel")
CODAS: Final = ("", "", "", "n", "r", "l", "s", "m", "x", "th", "nd", "rk")
SYLLABLES: Final = tuple(onset + vowel for onset in ONSETS for vowel in VOWELS)
# Every 10th, shifted so that all onsets and vowels also occur in training.
RESERVED: Final = frozenset(SYLLABLES[7::10])
OPEN: Final = tuple(syllable for syllable in SYLLABLES if syllable not in RESERVED)
CLOSED: Final = tuple(sorted(RESERVED))

# Everyday first names make the dialogues look like what people type. They serve both splits: what is unseen is
# the whole of the facts, not the name.
COMMON: Final = word_list("first_name")
TOWN_ENDINGS: Final = ("ton", "ville", "berg", "dale", "mouth", "field", "ham", "stad", "burg", "port")


def made_up(rng: Random, split: Split, syllables: int) -> str:
    """A lower-case name of so many syllables."""
    parts = [rng.choice(OPEN) for _ in range(syllables)]
    if split == "held_out":
        parts[rng.randrange(syllables)] = rng.choice(CLOSED)
    return "".join(parts) + rng.choice(CODAS)


def proper(rng: Random, split: Split) -> str:
    """A capitalised name of two or three syllables."""
    return made_up(rng, split, 2 if rng.random() < 0.7 else 3).capitalize()


def person(rng: Random, split: Split) -> str:
    """First name, sometimes with a family name or a title. Unseen names are always made up."""
    kind = rng.random()
    if kind < 0.25 and split == "train":
        return rng.choice(COMMON)
    if kind < 0.35:
        return f"{rng.choice(COMMON)} {proper(rng, split)}"
    if kind < 0.45:
        return f"{proper(rng, split)} {proper(rng, split)}"
    if kind < 0.5:
        return f"{rng.choice(('Dr.', 'Mr.', 'Mrs.', 'Ms.', 'Professor', 'Captain'))} {proper(rng, split)}"
    return proper(rng, split)


def town(rng: Random, split: Split) -> str:
    """A made-up town."""
    if rng.random() < 0.4:
        return made_up(rng, split, 2).capitalize() + rng.choice(TOWN_ENDINGS)
    return proper(rng, split)
