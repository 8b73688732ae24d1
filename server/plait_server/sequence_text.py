"""One sequence on its way from token ids to what the client sees of it."""

from collections.abc import Sequence

import msgspec

from plait_engine.request import Delta, FinishReason, SamplingParams, TokenLogprobs
from plait_server.text.detokenizer import Detokenizer
from plait_server.text.stop import StopMatcher


class Piece(msgspec.Struct, frozen=True, gc=False):
    """What one delta adds to one choice. The last piece of a choice, and no other, has a finish reason."""

    choice: int
    text: str
    token_ids: Sequence[int]
    logprobs: Sequence[TokenLogprobs] | None = None
    offsets: Sequence[int] = ()
    """Where each token's text begins in the choice's text, in characters; only filled beside log-probabilities."""
    finish_reason: str | None = None
    stop_reason: str | int | None = None


class SequenceText:
    """Detokenizes, matches stop strings and counts; the same code serves streams and whole answers."""

    __slots__ = (
        "_detokenizer",
        "_end_ids",
        "_include_stop",
        "_length",
        "_matcher",
        "_min_tokens",
        "_plain",
        "_wants_offsets",
        "begun",
        "choice",
        "completion_tokens",
        "finished",
    )

    def __init__(
        self,
        choice: int,
        sampling: SamplingParams,
        detokenizer: Detokenizer,
        end_ids: frozenset[int],
        *,
        include_stop: bool = False,
        offset: int = 0,
    ) -> None:
        self.choice = choice
        self.completion_tokens = 0
        self.begun = False
        """Whoever hears of its first delta says so."""
        self.finished = False
        self._detokenizer = detokenizer
        self._matcher = StopMatcher(sampling.stop, include_stop=include_stop)
        self._min_tokens = sampling.min_tokens
        self._end_ids = end_ids
        self._include_stop = include_stop
        self._wants_offsets = sampling.logprobs is not None
        self._plain = not sampling.stop and not self._wants_offsets
        self._length = offset

    def advance(self, delta: Delta) -> Piece:
        """Must not be called again after a piece with a finish reason. ``delta`` is neither aborted nor an error."""
        if self._plain and delta.finish_reason is None:
            # What most tokens of most requests are: text, and nothing to look for in it.
            ids = delta.token_ids
            self.completion_tokens += len(ids)
            push = self._detokenizer.push
            return Piece(self.choice, push(ids[0]) if len(ids) == 1 else "".join(map(push, ids)), ids)
        texts: list[str] = []
        offsets: list[int] = []
        stop: str | None = None
        for used, token_id in enumerate(self._with_text(delta), start=1):
            if self._wants_offsets:
                offsets.append(self._length)
            added = self._detokenizer.push(token_id)
            self._length += len(added)
            if self.completion_tokens + used > self._min_tokens:
                added, stop = self._matcher.push(added)
            texts.append(added)
            if stop is not None:
                return self._piece(delta, used, texts, offsets, "stop", stop)
        if delta.finish_reason is None:
            return self._piece(delta, len(delta.token_ids), texts, offsets, None, None)
        return self._finish(delta, texts, offsets)

    def _with_text(self, delta: Delta) -> Sequence[int]:
        """The tokens less the one that ended the sequence, which counts but is not part of the text."""
        ids = delta.token_ids
        ended = delta.finish_reason is FinishReason.STOP and not self._include_stop
        return ids[:-1] if ended and ids and ids[-1] in self._end_ids else ids

    def _finish(self, delta: Delta, texts: list[str], offsets: list[int]) -> Piece:
        if self._wants_offsets:
            offsets += [self._length] * (len(delta.token_ids) - len(offsets))
        added, stop = self._matcher.push(self._detokenizer.finish())
        texts.append(added)
        if stop is None:
            texts.append(self._matcher.finish())
        reason = "length" if delta.finish_reason is FinishReason.LENGTH else "stop"
        if stop is not None:
            reason = "stop"
        return self._piece(delta, len(delta.token_ids), texts, offsets, reason, stop or delta.stop_reason)

    def _piece(
        self,
        delta: Delta,
        used: int,
        texts: list[str],
        offsets: list[int],
        finish_reason: str | None,
        stop_reason: str | int | None,
    ) -> Piece:
        self.completion_tokens += used
        self.finished = finish_reason is not None
        logprobs = delta.logprobs[:used] if delta.logprobs is not None else None
        text = texts[0] if len(texts) == 1 else "".join(texts)
        return Piece(self.choice, text, delta.token_ids[:used], logprobs, offsets, finish_reason, stop_reason)


def end_ids_of(model_end_ids: Sequence[int], sampling: SamplingParams) -> frozenset[int]:
    """Tokens that end a sequence and therefore leave no text."""
    return frozenset(sampling.stop_token_ids) | (frozenset() if sampling.ignore_eos else frozenset(model_end_ids))
