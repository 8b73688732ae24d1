"""One prompt of a client's request: what the engine is asked, and what it said of the prompt."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from plait_engine.pin import PinOutcome
from plait_engine.request import CacheReport, Delta, Request, TokenLogprobs
from plait_server.sequence_text import SequenceText

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Part:
    """A prompt and its sequences; choice ``place * n + i`` of the answer is sequence ``i`` of prompt ``place``."""

    request: Request
    choices: list[SequenceText]
    prompt_logprobs: Sequence[TokenLogprobs | None] | None = None
    cached_tokens: int = 0
    """Of the prompt, really skipped."""
    cache: CacheReport | None = None
    pin: PinOutcome | None = None

    def begin(self, first: Delta) -> None:
        """What the first delta of a sequence says of the prompt."""
        if first.prompt_logprobs is not None:
            self.prompt_logprobs = first.prompt_logprobs
        if first.cached_tokens and first.index == 0:
            # Of n sequences the first tells what was cached before; the others reuse what it computed.
            self.cached_tokens = first.cached_tokens
        if first.cache is not None and first.index == 0:
            self.cache = first.cache
            log.debug("%s: of %d prompt tokens %s", self.request.id, len(self.request.prompt), first.cache)
        self.pin = first.pin or self.pin

    @property
    def written(self) -> int:
        """Tokens of the prompt that could not be reused before, and can from now on."""
        last = 0 if self.cache is None else max(self.cache.checkpoints, default=0)
        return max(0, last - self.cached_tokens)
