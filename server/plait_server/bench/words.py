"""Texts of about as many tokens as asked for, without knowing the server's tokenizer."""

import random

SYLLABLES = ("ba", "de", "fi", "go", "lu", "ma", "ne", "pi", "ro", "su", "ta", "ve", "wi", "zo", "ka", "le")
PROBE_WORDS = 200


class Words:
    """``tokens_per_word`` is what the server counted for a probe."""

    def __init__(self, tokens_per_word: float = 1.0) -> None:
        self._tokens_per_word = tokens_per_word

    def text(self, tokens: int, seed: str) -> str:
        """The same text for the same seed; of another seed it is another text from the first word on."""
        return words(max(1, round(tokens / self._tokens_per_word)), seed)


def words(count: int, seed: str) -> str:
    chance = random.Random(seed)
    return " ".join("".join(chance.choices(SYLLABLES, k=2)) for _ in range(count))
