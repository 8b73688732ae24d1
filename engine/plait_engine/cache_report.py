"""What a client can be told of its prompt and the cache."""

from plait_engine.request import CacheReport
from plait_engine.sequence import Sequence


def cache_report(sequence: Sequence, *, enabled: bool) -> CacheReport:
    """For a sequence whose prompt is computed."""
    reuse = sequence.reuse
    known, effective = (0, 0) if reuse is None else (reuse.known, reuse.effective)
    reason = None if reuse is None else reuse.reason
    return CacheReport(known, effective, reason if known else unused(sequence, enabled), tuple(sequence.left))


def unused(sequence: Sequence, enabled: bool) -> str:
    """Why nothing at all was known of the prompt, in the words of ``plait_prefix_unused_total``."""
    if not enabled or sequence.request.sampling.prompt_logprobs is not None:
        return "bypass"
    return "too_short" if sequence.prompt_length < 2 else "no_match"
