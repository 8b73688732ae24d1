"""When a sequence ends."""

from typing import NamedTuple

from plait_engine.request import FinishReason
from plait_engine.sequence import Sequence


class End(NamedTuple):
    reason: FinishReason
    token_id: int | None = None
    """The stop token that the client named, when that is why; None for the model's own end tokens."""


def finish_after(sequence: Sequence, eos_token_ids: frozenset[int], max_model_len: int) -> End | None:
    """Whether the token just appended is the last one, and why. A stop token wins over the length."""
    sampling = sequence.request.sampling
    token = sequence.tokens[-1]
    generated = len(sequence.tokens) - sequence.prompt_length
    if generated and generated >= sampling.min_tokens:
        if token in sampling.stop_token_ids:
            return End(FinishReason.STOP, token)
        if token in eos_token_ids and not sampling.ignore_eos:
            return End(FinishReason.STOP)
    if generated >= sampling.max_tokens or len(sequence.tokens) >= max_model_len:
        return End(FinishReason.LENGTH)
    return None
