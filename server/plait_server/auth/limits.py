"""What keys have used, held against what they may. Used from one event loop."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from plait_server.auth.keys import Key
from plait_server.errors import MAX_RETRY_AFTER_SECONDS, ApiError

Spend = Callable[[int], None]


def unlimited(_: int) -> None:
    """Nothing is counted."""


class Bucket:
    """A minute's allowance that fills up again as time passes. It may be overdrawn, and then has to fill up first."""

    def __init__(self, now: float) -> None:
        self.per_minute = 0
        self._used = 0.0
        self._at = now

    def wait_seconds(self, amount: float, per_minute: int, now: float) -> float:
        """How long until ``amount`` can be taken; 0 is now. The allowance may be another one than the last time."""
        self._used = max(0.0, self._used - (now - self._at) * self.per_minute / 60)
        self._at, self.per_minute = now, per_minute
        return max(0.0, self._used + amount - per_minute) * 60 / per_minute

    def take(self, amount: float) -> None:
        self._used += amount


@dataclass
class Used:
    """By one key, under its name: a key that is changed in the file keeps its account."""

    requests: Bucket
    tokens: Bucket
    sequences: int = 0


@dataclass
class Limiter:
    clock: Callable[[], float] = time.monotonic
    used: dict[str, Used] = field(default_factory=dict)

    def request(self, key: Key | None) -> None:
        """Counts one request. Raises ``ApiError`` when the key has none left."""
        if key is None or (limit := key.limits.requests_per_minute) is None:
            return
        bucket = self._of(key).requests
        if wait := bucket.wait_seconds(1, limit, self.clock()):
            raise over(f"this key may send {limit} requests a minute", wait)
        bucket.take(1)

    @contextmanager
    def work(self, key: Key | None, prompt_tokens: int, sequences: int, capacity: int) -> Iterator[Spend]:
        """Around the work for one request. Raises ``ApiError`` when tokens or places are used up.

        Gives a function to call with tokens generated. A request may overdraw the tokens; the next then waits, so that
        nobody has to know in advance how long answers get.
        """
        if key is None:
            yield unlimited
            return
        used = self._of(key)
        self._check_tokens(key, used)
        self._check_places(key, used, sequences, capacity)
        spend = unlimited if key.limits.tokens_per_minute is None else used.tokens.take
        spend(prompt_tokens)
        used.sequences += sequences
        try:
            yield spend
        finally:
            used.sequences -= sequences

    def _check_tokens(self, key: Key, used: Used) -> None:
        limit = key.limits.tokens_per_minute
        if limit is not None and (wait := used.tokens.wait_seconds(1, limit, self.clock())):
            raise over(f"this key may use {limit} tokens a minute", wait)

    def _check_places(self, key: Key, used: Used, sequences: int, capacity: int) -> None:
        share = key.limits.queue_share
        if share is None:
            return
        places = max(1, int(share * capacity))
        if sequences > places:
            raise ApiError(400, f"n: this key may have {places} sequences at a time; ask for fewer", param="n")
        if used.sequences + sequences > places:
            raise over(f"this key may have {places} sequences at a time and has {used.sequences}", 1)

    def _of(self, key: Key) -> Used:
        if key.name not in self.used:
            now = self.clock()
            self.used[key.name] = Used(Bucket(now), Bucket(now))
        return self.used[key.name]


def over(message: str, wait_seconds: float) -> ApiError:
    wait = min(math.ceil(wait_seconds), MAX_RETRY_AFTER_SECONDS)
    return ApiError(429, f"{message}; try again in {wait} s", headers={"Retry-After": str(wait)})
