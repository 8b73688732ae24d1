"""Which rows the next step has: decodes first, then prefill chunks, then whoever can be admitted."""

from collections.abc import Iterator
from dataclasses import dataclass

from plait_engine.scheduler.hold import hold_for
from plait_engine.scheduler.step_plan import Row, StepPlan
from plait_engine.scheduler.waiting import WaitingQueue
from plait_engine.sequence import Sequence
from plait_engine.state.checkpoint import Checkpoint
from plait_engine.state.ledger import Ledger
from plait_engine.state.prefix_cache import PrefixCache
from plait_engine.state.restore import Restore
from plait_engine.state.resume_point import NO_MATCH, Match
from plait_engine.state.spec import Position

MAX_PREFILLING = 8
"""Prompts prefilled at a time: enough that a short one gets in beside long ones, few enough to hold little memory."""


@dataclass(frozen=True)
class SchedulerLimits:
    max_batch_tokens: int
    max_seqs: int
    max_model_len: int


class Scheduler:
    """Owns the queue, the running set and the rows. A step's pages are all reserved before the step is planned.

    Fairness, in steps: a running decode is in every step, so a long prompt delays it by one chunk at most. When several
    prompts are being prefilled, the oldest gets half of what the decodes leave of the budget and the one with the least
    to do the other half, so neither a stream of short prompts nor a stream of long ones starves anybody.
    """

    def __init__(self, limits: SchedulerLimits, cache: PrefixCache) -> None:
        self.limits = limits
        self.cache = cache
        self.waiting = WaitingQueue()
        self.running: list[Sequence] = []
        """In order of ``Sequence.order``."""
        self._free_rows = list(range(limits.max_seqs - 1, -1, -1))
        self.preempted = 0
        self._planned: set[Sequence] = set()
        """Have a row in the step that is being planned, so they are nobody's victims any more."""
        self._short: Sequence | None = None
        """Had too few pages for its last chunk, since its victim was planned already."""

    @property
    def ledger(self) -> Ledger:
        return self.cache.ledger

    def add(self, sequence: Sequence) -> None:
        self.waiting.push(sequence)

    def can_ever_fit(self, sequence: Sequence, length: int) -> bool:
        """Whether the sequence could grow to ``length`` tokens if it were alone."""
        demand = sequence.state.admission_demand(length, self.limits.max_batch_tokens)
        return self.ledger.fits_alone(demand)

    def schedule(self) -> StepPlan:
        """The next step. Empty only when nothing runs and nothing waits, or all that runs is in flight."""
        self.cache.poll()
        self._planned.clear()
        budget = self.limits.max_batch_tokens
        preempted = self.preempted
        decodes, held = self._decode_rows(budget)
        # Who was just preempted must not come back into the same step and ask for the same pages again.
        admit = self.preempted == preempted or not decodes
        left = budget - sum(row.count for row in decodes)
        rows = (*decodes, *([] if held else self._chunk_rows(left, admit)))
        for row in rows:
            row.sequence.scheduled = row.end
            row.sequence.in_flight += 1
            row.sequence.pending += row.samples
        return StepPlan((*(row for row in rows if row.single), *(row for row in rows if not row.single)))

    def release(self, sequence: Sequence) -> None:
        """One way out for finish, abort and preemption: what is worth keeping goes to the tree, the rest is free."""
        if sequence.row >= 0:
            self.running.remove(sequence)
            self._free_rows.append(sequence.row)
            sequence.row = -1
        else:
            self.waiting.remove(sequence)
            self.cache.leave(sequence)
        if sequence.restore is not None:
            self.cache.withdraw(sequence.restore)
            sequence.restore = None
        else:
            self.cache.keep(sequence)
        sequence.state.release(self.ledger)
        sequence.scheduled = Position(0)
        sequence.marks = []

    def start_over(self, sequence: Sequence) -> None:
        """A sequence whose restore failed goes back to the queue; nothing of its state is kept."""
        sequence.receipt = None
        self.release(sequence)
        sequence.tainted = False
        self.waiting.push(sequence)

    # Decodes ---------------------------------------------------------------------------------------------------------

    def _decode_rows(self, budget: int) -> tuple[list[Row], bool]:
        """The decodes, and whether one is held: it needs the memory of a younger sequence that is in flight.

        Nothing younger is planned behind it then, so that it finds its victim when that step has landed. A decode is
        one token, unless more were forced behind it: those share half of the budget that one token each would leave.
        """
        rows: list[Row] = []
        forced = max(0, budget - len(self.running)) // 2
        for sequence in list(self.running):
            if len(rows) == budget:
                break
            short = sequence is self._short and sequence.finish is None
            if sequence.row < 0 or not (short or self._decodes(sequence)):
                continue
            count = 1 if short else min(sequence.remaining, 1 + forced)
            if self._grow(sequence, sequence.scheduled + count):
                self._short = None if short else self._short
                if self._decodes(sequence):
                    rows.append(self._row(sequence, Position(sequence.scheduled + count)))
                    forced -= count - 1
            elif sequence.row >= 0:
                return rows, True
        return rows, False

    def _decodes(self, sequence: Sequence) -> bool:
        """Whether all that is left to compute came since it was admitted, and another token is wanted behind it."""
        if sequence.finish is not None or not sequence.remaining or sequence.scheduled < sequence.entered:
            return False
        sampling = sequence.request.sampling
        return sequence.generated < sampling.max_tokens and sequence.length < self.limits.max_model_len

    def _grow(self, sequence: Sequence, tokens: int) -> bool:
        """Pages for the first ``tokens`` tokens; preempts younger sequences for it, at last the sequence itself.

        False when it was preempted, or when who should be is named by a step, launched or being planned.
        """
        if tokens <= sequence.state.capacity:
            return True
        sequence.state.pass_windows(sequence.scheduled, self.ledger)
        demand = sequence.state.growth_demand(tokens)
        while (units := self.cache.take(demand)) is None:
            if self.cache.recall():
                continue
            youngest = self.running[-1]
            if youngest.in_flight or youngest in self._planned:
                return False
            self._preempt(youngest)
            if youngest is sequence:
                return False
        sequence.state.grow(tokens, units)
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self.release(sequence)
        sequence.preemptions += 1
        sequence.preempted = True
        self.preempted += 1
        self.waiting.push(sequence)

    # Prefill ---------------------------------------------------------------------------------------------------------

    def _chunk_rows(self, budget: int, admit: bool) -> list[Row]:
        prefilling = [s for s in self.running if s.finish is None and self._prefills(s)]
        while admit and budget > 0 and len(prefilling) < MAX_PREFILLING and (admitted := self._admit()) is not None:
            prefilling.append(admitted)
        counts = self._share(sorted(prefilling, key=lambda s: s.order), budget)
        rows = []
        for sequence, count in counts.items():
            if sequence.row >= 0 and (row := self._chunk(sequence, count)) is not None:
                rows.append(row)
        return rows

    @staticmethod
    def _prefills(sequence: Sequence) -> bool:
        return sequence.scheduled < sequence.entered

    @staticmethod
    def _share(prefilling: list[Sequence], budget: int) -> dict[Sequence, int]:
        """Spread ``budget`` over the prefilling sequences, given in order."""
        counts: dict[Sequence, int] = {}
        if not prefilling:
            return counts
        shortest = min(prefilling, key=lambda s: (s.remaining, s.arrival))
        turns = ((prefilling[0], -(-budget // 2)), (shortest, budget), *((s, budget) for s in prefilling))
        for sequence, most in turns:
            count = min(sequence.remaining - counts.get(sequence, 0), most, budget)
            if count > 0:
                counts[sequence] = counts.get(sequence, 0) + count
                budget -= count
        return counts

    def _chunk(self, sequence: Sequence, count: int) -> Row | None:
        """Shorter, or None, when windows that others hold too left it without a page and nobody younger could give one:
        then it comes before whoever is younger in the next step.
        """
        end = Position(sequence.scheduled + count)
        if not self._grow(sequence, end):
            if sequence.row < 0:
                return None
            self._short = sequence
            end = Position(min(end, sequence.state.capacity))
            if end <= sequence.scheduled:
                return None
        return self._row(sequence, end)

    def _row(self, sequence: Sequence, end: Position) -> Row:
        """All up to ``end``, for which it has pages."""
        self._planned.add(sequence)
        emits = tuple(self._emits(sequence, end))
        sequence.emitting += tuple(checkpoint.position for checkpoint in emits)
        samples = end == sequence.length and sequence.request.sampling.max_tokens > 0
        return Row(sequence, sequence.scheduled, end - sequence.scheduled, samples, _handed_over(sequence), emits)

    def _emits(self, sequence: Sequence, end: Position) -> Iterator[Checkpoint]:
        """Checkpoints that a chunk up to ``end`` leaves on its way. Where there is no room it leaves fewer."""
        while sequence.marks and sequence.marks[0] <= end:
            checkpoint = self.cache.reserve(sequence, sequence.marks.pop(0))
            if checkpoint is not None:
                yield checkpoint

    def _admit(self) -> Sequence | None:
        """The first in the queue that is not held, with everything its prompt takes, or nobody.

        Who is held waits for a prefix that is being computed right now, or is on its way from a tier, and only such a
        one is overtaken.
        """
        if not self._free_rows:
            return None
        for sequence in self.waiting.first(MAX_PREFILLING):
            match = self.cache.match(sequence)
            if self.cache.enabled and hold_for(sequence, self.running, match):
                continue
            ready = self.cache.bring(sequence, match)
            if ready is None:
                continue
            if not self._enter(sequence, ready):
                return None
            self.waiting.remove(sequence)
            sequence.row = self._free_rows.pop()
            sequence.admissions += 1
            sequence.entered = sequence.length
            self.running.append(sequence)
            self.running.sort(key=lambda s: s.order)
            return sequence
        return None

    def _enter(self, sequence: Sequence, match: Match) -> bool:
        """Going on from a resume point takes a little more memory than starting over, since the point itself stays.

        Who has the machine to himself and still finds no room starts over, for which everything cached may go.
        """
        chunk = self.limits.max_batch_tokens
        if self.cache.admit(sequence, match, chunk):
            return True
        if self.running:
            return False
        if self.cache.recall() and not match.best and self.cache.admit(sequence, match, chunk):
            return True
        return match.best is not None and self.cache.admit(sequence, NO_MATCH, chunk)


def _handed_over(sequence: Sequence) -> Restore | None:
    """The restore that the sequence's first row carries; later rows carry none."""
    restore, sequence.restore = sequence.restore, None
    return restore
