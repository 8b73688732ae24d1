"""Token rows for training: dialogues and prose, packed to an exact length, with the weight of each token's loss."""

from __future__ import annotations

from math import exp, log
from pathlib import Path
from random import Random
from typing import Final

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from demo.dialogue import Dialogue, Writer
from demo.tokenizer import END_OF_TEXT_ID, TURN_END, TURN_START

MASKED, LIGHT, ANSWER = 0, 1, 2
LOSS_WEIGHTS: Final = (0.0, 0.1, 1.0)  # by the codes above

CHARS_PER_TOKEN: Final = 2.2  # of dialogues, measured; prose has 3
PROSE_ROWS: Final = 0.15  # share of rows that are prose alone
WHOLE_ROWS: Final = 0.6  # share of the other rows that one dialogue is to fill
SHORTEST_DIALOGUE: Final = 40  # tokens
MAX_PROSE_CHARS: Final = 400  # of a paragraph between facts

Tokens = NDArray[np.uint16]
Codes = NDArray[np.uint8]


class Prose:
    """The corpus, as paragraphs for distraction and as one stream of tokens for plain reading."""

    def __init__(self, folder: Path, tokenizer: Tokenizer) -> None:
        texts = [path.read_text(encoding="utf-8").splitlines() for path in sorted(folder.glob("*.txt"))]
        self.paragraphs = tuple(line for lines in texts for line in lines if len(line) <= MAX_PROSE_CHARS)
        stored = folder / "stream.npy"
        if not stored.exists():
            np.save(stored, self._encode(texts, tokenizer))
        self.stream: Tokens = np.load(stored, mmap_mode="r")

    @staticmethod
    def _encode(texts: list[list[str]], tokenizer: Tokenizer) -> Tokens:
        """Pieces of ten paragraphs in file order, each closed by the end-of-text token."""
        pieces = ["\n".join(lines[start : start + 10]) for lines in texts for start in range(0, len(lines), 10)]
        Random(0).shuffle(pieces)
        ids: list[int] = []
        for encoding in tokenizer.encode_batch_fast(pieces, add_special_tokens=False):
            ids += [*encoding.ids, END_OF_TEXT_ID]
        return np.array(ids, dtype=np.uint16)

    def slice(self, rng: Random, length: int) -> Tokens:
        """So many tokens from anywhere in the corpus."""
        start = rng.randrange(len(self.stream) - length)
        return self.stream[start : start + length]


def segments(dialogue: Dialogue) -> list[tuple[str, int]]:
    """(text, weight code) pieces whose texts together are what the chat template renders.

    Every piece ends where a special token or a line break stands, so their tokens are those of the whole text.
    """
    pieces: list[tuple[str, int]] = []
    before = ""
    forms = iter(dialogue.forms)
    for message in dialogue.messages:
        before += f"{TURN_START}{message.role}\n"
        if message.role == "assistant":
            pieces.append((before, MASKED))
            pieces.append((message.content + TURN_END, LIGHT if next(forms) == "noted" else ANSWER))
            before = "\n"
        else:
            before += f"{message.content}{TURN_END}\n"
    pieces.append((before, MASKED))
    return pieces


class RowWriter:
    """Makes rows of the training split. Everything follows from the `rng`."""

    def __init__(self, tokenizer: Tokenizer, prose: Prose, rng: Random) -> None:
        self.tokenizer = tokenizer
        self.prose = prose
        self.rng = rng

    def row(self, length: int) -> tuple[Tokens, Codes]:
        """Exactly `length` tokens and their weight codes."""
        if self.rng.random() < PROSE_ROWS:
            return self.prose.slice(self.rng, length), np.full(length, LIGHT, dtype=np.uint8)
        ids: list[int] = []
        codes: list[int] = []
        while (left := length - len(ids)) > SHORTEST_DIALOGUE:
            budget = left if self.rng.random() < WHOLE_ROWS else self._shorter(left)
            more_ids, more_codes = self._dialogue(budget)
            ids += more_ids
            codes += more_codes
        missing = length - len(ids)
        if missing > 0:
            ids += self.prose.slice(self.rng, missing).tolist()
            codes += [LIGHT] * missing
        return np.array(ids[:length], dtype=np.uint16), np.array(codes[:length], dtype=np.uint8)

    def _shorter(self, left: int) -> int:
        """Log-uniform between the shortest dialogue and what is left."""
        return int(exp(self.rng.uniform(log(SHORTEST_DIALOGUE), log(left))))

    def _dialogue(self, tokens: int) -> tuple[list[int], list[int]]:
        chars = int(tokens * CHARS_PER_TOKEN)
        pieces = segments(Writer(self.rng, "train", False, self.prose.paragraphs, chars).write())
        encodings = self.tokenizer.encode_batch_fast([text for text, _ in pieces], add_special_tokens=False)
        ids: list[int] = []
        codes: list[int] = []
        for encoding, (_, code) in zip(encodings, pieces, strict=True):
            ids += encoding.ids
            codes += [code] * len(encoding.ids)
        return [*ids, END_OF_TEXT_ID], [*codes, MASKED]
