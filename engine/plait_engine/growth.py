"""What a sampled token means for its sequence: itself, what its grammar forces behind it, and the end if it is one."""

from collections.abc import Iterable
from typing import NamedTuple

from plait_engine.finish import End, finish_after
from plait_engine.request import FinishReason
from plait_engine.runner.grammars import Grammars, Verdict
from plait_engine.sequence import Sequence


class Growth(NamedTuple):
    """``tokens`` are what the sequence has more than before. Where there is an ``error`` they are nothing to show."""

    tokens: tuple[int, ...]
    end: End | None
    error: str | None = None


class Grower:
    """Appends to sequences. A forced token is looked at as if a step of its own had sampled it, as it would have."""

    def __init__(self, grammars: Grammars, eos_token_ids: frozenset[int], max_model_len: int) -> None:
        self._grammars = grammars
        self._eos = eos_token_ids
        self._max_model_len = max_model_len

    def grow(self, sequence: Sequence, sampled: int | None) -> Growth:
        """``sampled`` is None where no token was wanted."""
        if sampled is None:
            return Growth((), End(FinishReason.LENGTH))
        length = len(sequence.tokens)
        end = self._append(sequence, (sampled,))
        if sequence.request.grammar is None:
            return Growth((sampled,), end)
        verdict = self._grammars.follow(sequence)
        if end is None and verdict is Verdict.OPEN and (forced := self._grammars.forced(sequence)):
            end = self._append(sequence, forced)
            verdict = self._grammars.follow(sequence)
        tokens = tuple(sequence.tokens[length:])
        match verdict:
            case Verdict.BROKEN:
                return Growth(tokens, None, self._grammars.error(sequence))
            case Verdict.COMPLETE if end is None or end.reason is FinishReason.LENGTH:
                return Growth(tokens, End(FinishReason.STOP))
        if end is None:
            self._grammars.expect(sequence)
        return Growth(tokens, end)

    def _append(self, sequence: Sequence, tokens: Iterable[int]) -> End | None:
        """Up to the first one that ends it."""
        for token in tokens:
            sequence.tokens.append(token)
            if (end := finish_after(sequence, self._eos, self._max_model_len)) is not None:
                return end
        return None
