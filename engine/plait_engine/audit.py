"""Audit of hits: some of what was restored is computed again from nothing while nobody waits, and compared.

A live request notices nothing: its logits are copied when it samples its first token behind the restore, and everything
else is done one step at a time while the engine is idle, and given up when somebody comes.
"""

import logging
import random
from collections import deque
from collections.abc import Generator
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from plait_engine.cold_run import ColdRun
from plait_engine.runner.runner import ModelRunner
from plait_engine.scheduler.scheduler import SchedulerLimits
from plait_engine.scheduler.step_plan import Row, StepPlan
from plait_engine.sequence import Sequence
from plait_engine.state.ledger import Units
from plait_engine.state.prefix_cache import PrefixCache
from plait_engine.state.spec import Position

log = logging.getLogger("plait.audit")

CHUNK_TOKENS = 256
"""Of one step of an audit: whoever comes meanwhile waits for that step."""
MOST_PENDING = 16
"""Audits that wait for an idle moment. Each holds the logits of one token."""
CALIBRATION_LENGTHS = (16, 64, 160)
"""Tokens that are computed at once and one by one to see how far rounding alone takes the model's logits apart."""
MARGIN = 8.0
"""How much more than that is still called rounding: other texts, longer ones, states that went through more hands."""
LEAST_TOLERANCE = {torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 3e-2}
"""Relative to the largest logit; about a thousand roundings in fp32, four in bf16."""

Steps = Generator[None, None, Tensor | None]


class Hit(NamedTuple):
    """``logits [vocab]`` behind ``tokens``, as a sequence got them that went on from ``position``."""

    namespace: str
    tokens: tuple[int, ...]
    position: Position
    logits: Tensor


class Auditor:
    """Of every restore, a share of ``rate`` is audited. 0: none, and it costs nothing."""

    def __init__(self, rate: float, runner: ModelRunner, cache: PrefixCache, limits: SchedulerLimits) -> None:
        self.rate = rate
        self._runner = runner
        self._cache = cache
        self._chunk = min(CHUNK_TOKENS, limits.max_batch_tokens)
        self._longest = limits.max_model_len
        self._random = random.Random()
        self._watched: WeakKeyDictionary[Sequence, Position] = WeakKeyDictionary()
        """Sequences that were restored at a position, and have not sampled since."""
        self._heard: WeakKeyDictionary[Sequence, Hit] = WeakKeyDictionary()
        self._pending: deque[Hit] = deque()
        self._rounding: list[float] = []
        self._auditing: Hit | None = None
        self._steps: Generator[None] | None = None
        self._run: ColdRun | None = None
        if rate:
            runner.tap = self._hear
            for result in ("match", "mismatch", "dropped"):
                cache.stats.count("plait_hit_audits_total", 0, f"result={result}")

    # While requests run -----------------------------------------------------------------------------------------------

    def watch(self, plan: StepPlan) -> None:
        """Before the step is launched: which of its restores will be audited."""
        if not self.rate:
            return
        for row in plan.rows:
            if row.restore is not None or not row.start:
                self._watched.pop(row.sequence, None)
            if row.restore is not None and self._random.random() < self.rate:
                self._watched[row.sequence] = row.start

    def _hear(self, rows: tuple[Row, ...], logits: Tensor) -> None:
        if not self._watched:
            return
        for i, row in enumerate(rows):
            sequence, position = row.sequence, self._watched.pop(row.sequence, None)
            if position is not None:
                tokens = tuple(sequence.tokens[: row.end])
                self._heard[sequence] = Hit(sequence.namespace, tokens, position, logits[i].float().clone())

    def settle(self, row: Row) -> None:
        """The row's step is committed. What started from a restore that was found untrue is computed again anyway."""
        if not self._heard or not row.samples or (hit := self._heard.pop(row.sequence, None)) is None:
            return
        if not row.sequence.tainted:
            self._pending.append(hit)
            if len(self._pending) > MOST_PENDING:
                self._pending.popleft()
                self._count("dropped")

    # While nobody waits -----------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """One step of an audit, of an engine that is idle; False when there is nothing to audit."""
        if self._steps is None:
            if not self._pending:
                return False
            self._auditing = self._pending.popleft()
            self._steps = self._audit(self._auditing)
        if next(self._steps, self) is self:
            self._auditing = self._steps = None
        return True

    def defer(self) -> None:
        """Somebody came: the audit gives its memory back, and begins anew in the next idle moment."""
        if self._steps is None or self._auditing is None:
            return
        self._steps.close()
        self._pending.appendleft(self._auditing)
        self._auditing = self._steps = None

    def owned(self) -> list[Units]:
        return [] if self._run is None else [self._run.owned()]

    def _audit(self, hit: Hit) -> Generator[None]:
        tolerance = yield from self._tolerance()
        cold = yield from self._cold(hit.tokens, self._chunk)
        if cold is None:
            self._count("dropped")
            return
        difference = relative_difference(cold, hit.logits)
        if not difference <= tolerance:
            # Believed only when a second run, in other pieces, says the same; how far the two are apart is rounding.
            again = yield from self._cold(hit.tokens, max(1, min(self._chunk, len(hit.tokens)) // 2))
            if again is not None:
                tolerance = max(tolerance, MARGIN * relative_difference(cold, again))
                difference = min(difference, relative_difference(again, hit.logits))
        if difference <= tolerance:
            self._count("match")
            return
        self._count("mismatch")
        dropped = self._cache.quarantine(hit.namespace, hit.tokens)
        log.error(
            "audit: a prompt of %d tokens that went on from %d got logits that differ from a cold run's by %.1e of the "
            "largest one, where %.1e is rounding; all that shares its beginning is dropped from the cache (%d tokens)",
            *(len(hit.tokens), hit.position, difference, tolerance, dropped),
        )

    def _tolerance(self) -> Generator[None, None, float]:
        """How much rounding explains, seen on the model itself before the first audit."""
        words = random.Random(0)
        for length in CALIBRATION_LENGTHS[len(self._rounding) :]:
            tokens = tuple(words.randrange(self._runner.vocab_size) for _ in range(min(length, self._longest)))
            whole = yield from self._cold(tokens, self._chunk)
            pieces = yield from self._cold(tokens, 1)
            # Without memory for it there is nothing to learn here, and then there is none for longer ones either.
            self._rounding.append(0.0 if whole is None or pieces is None else relative_difference(whole, pieces))
        dtype = next(self._runner.model.parameters()).dtype
        return max(LEAST_TOLERANCE[dtype], MARGIN * max(self._rounding))

    def _cold(self, tokens: tuple[int, ...], chunk: int) -> Steps:
        self._run = run = ColdRun(self._runner, self._cache, tokens, chunk)
        try:
            yield from run.steps()
        finally:
            run.close()
            self._run = None
        return run.logits

    def _count(self, result: str) -> None:
        self._cache.stats.count("plait_hit_audits_total", labels=f"result={result}")


def relative_difference(a: Tensor, b: Tensor) -> float:
    """Largest difference of two rows of logits, relative to the largest of ``a``; NaN where one has a NaN."""
    return float((a - b).abs().max() / a.abs().max())
