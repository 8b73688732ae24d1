"""Trying a kernel's configurations for one shape: which is fastest, among those that are right."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from plait_kernels.tuning import TABLES, Config, Tunable, read_table
from plait_kernels.tuning.op_call import OpCall, Truth

log = logging.getLogger("plait.tuning")

MOST = 24
"""Configurations that are tried for a shape, besides the default."""
NEVER = float("inf")
GAIN = 0.97
"""Of the default's time, what another one may take at most: less than that is noise."""
Run = Callable[[], object]


class Bench(Protocol):
    """What a search asks of the machine; see ``plait_kernels.cuda.bench``."""

    def seconds_each(self, calls: Sequence[Run], worth_seconds: float) -> float:
        """Of one call, on average. Whatever takes longer than ``worth_seconds`` need not be measured exactly."""

    def compile(self, calls: Iterable[Run]) -> None:
        """Make what the calls would launch, many at a time; what cannot be made is found out when it is launched."""

    def over(self) -> bool:
        """Whether there is no time left to try another one."""


@dataclass(frozen=True)
class Finding:
    """``config`` takes ``seconds`` where the default takes ``default_seconds``; ``tried`` others, ``failed`` of them
    did not run or were wrong."""

    config: Config
    seconds: float
    default_seconds: float
    tried: int
    failed: int


def candidates(tunable: Tunable, most: int) -> list[Config]:
    """What was best somewhere, on any GPU and for any shape, most often first; then some of all options, from all of
    their range. Without the default."""
    somewhere: Counter[tuple[tuple[str, int], ...]] = Counter()
    for path in sorted(TABLES.glob("*.json")):
        for config in read_table(path).get(tunable.name, {}).values():
            somewhere[_complete(tunable, config)] += 1
    options = dict.fromkeys(_complete(tunable, option) for option in tunable.options)
    best = [config for config, _ in somewhere.most_common(most) if config in options]
    rest = [config for config in options if config not in best and config != _complete(tunable, {})]
    best = [config for config in best if config != _complete(tunable, {})]
    room = min(len(rest), most - len(best))
    return [dict(config) for config in best + [rest[i * len(rest) // room] for i in range(room)]]


def search(tunable: Tunable, calls: Sequence[OpCall], arena: Tensor, bench: Bench) -> Finding:
    """The best of ``tunable`` for ``calls``, which all ask for one shape. Configurations are timed first, and compared
    with the default when they are the fastest so far: one that is not right is passed over."""
    options = candidates(tunable, MOST)
    bench.compile([_under(tunable, option, calls[0]) for option in options])
    with tunable.use(tunable.default):
        truth = Truth(calls[0], arena)
    default_seconds = bench.seconds_each([_under(tunable, tunable.default, call) for call in calls], NEVER)
    best, seconds, tried, failed = tunable.default, default_seconds, 0, 0
    for option in options if truth.finite else ():
        if bench.over():
            break
        tried += 1
        try:
            taken = bench.seconds_each([_under(tunable, option, call) for call in calls], seconds)
            if taken >= min(seconds, GAIN * default_seconds):
                continue
            with tunable.use(option):
                error = truth.error()
        except Exception as failure:
            log.debug("%s %s: %s: %s", tunable.name, option, type(failure).__name__, failure)
            failed += 1
            continue
        if error > truth.limit:
            log.warning("%s %s is wrong here (%.2g), and not used", tunable.name, option, error)
            failed += 1
            continue
        best, seconds = option, taken
    return Finding({**tunable.default, **best}, seconds, default_seconds, tried, failed)


def _complete(tunable: Tunable, config: Config) -> tuple[tuple[str, int], ...]:
    return tuple(sorted({**tunable.default, **config}.items()))


def _under(tunable: Tunable, option: Config, call: OpCall) -> Run:
    def run() -> object:
        with tunable.use(option):
            return call()

    return run
