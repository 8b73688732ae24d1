"""What penalties need to know of a sequence, kept up to date token by token and never built anew."""

import numpy as np
from numpy.typing import NDArray

from plait_engine.sequence import Sequence


class History:
    """Each token of prompt or output once, and how often it was generated."""

    def __init__(self) -> None:
        self._places: dict[int, int] = {}
        self._tokens = np.zeros(64, np.int64)
        self._counts = np.zeros(64, np.int64)
        self._followed = 0

    def follow(self, sequence: Sequence) -> None:
        """Take in what has come since the last time."""
        for position in range(self._followed, len(sequence.tokens)):
            token = sequence.tokens[position]
            place = self._places.setdefault(token, len(self._places))
            if place == len(self._tokens):
                self._tokens, self._counts = (
                    np.concatenate((a, np.zeros_like(a))) for a in (self._tokens, self._counts)
                )
            self._tokens[place] = token
            self._counts[place] += position >= sequence.prompt_length
        self._followed = len(sequence.tokens)

    @property
    def tokens(self) -> NDArray[np.int64]:
        return self._tokens[: len(self._places)]

    @property
    def counts(self) -> NDArray[np.int64]:
        """Of ``tokens``, in the output."""
        return self._counts[: len(self._places)]
