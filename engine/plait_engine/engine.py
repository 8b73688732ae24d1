"""The engine: requests in, deltas out, one step at a time."""

import secrets
import time
from collections.abc import Iterable

from plait_engine.audit import Auditor
from plait_engine.cache_order import CacheAnswer, CacheOrder
from plait_engine.cache_report import cache_report
from plait_engine.gauges import Gauges, arena_gauges
from plait_engine.growth import Grower
from plait_engine.request import Delta, FinishReason, Request
from plait_engine.runner.runner import Launched, ModelRunner, Sampled
from plait_engine.scheduler.scheduler import Scheduler
from plait_engine.scheduler.step_plan import Row, StepPlan
from plait_engine.sequence import Sequence
from plait_engine.state.cache_orders import obey
from plait_engine.state.checkpoint import StepReceipt
from plait_engine.state.ledger import Ledger
from plait_engine.state.pins import PinRefused
from plait_engine.state.pools import StateBug
from plait_engine.state.sequence_state import SequenceState

PAUSE_SECONDS = 0.001
"""While nothing runs, and a grammar is being compiled in its thread or a state is on its way from a tier."""


class CannotFit(Exception):
    """The request can never be served with this memory or model; the message says what to change."""


class Engine:
    """Owns the sequences. Single-threaded: whoever calls ``step`` calls everything else too.

    Every sequence that was added ends with exactly one delta that has a finish reason, unless it was aborted.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: ModelRunner,
        eos_token_ids: Iterable[int],
        overlap: bool,
        audit_rate: float = 0.0,
    ) -> None:
        self.scheduler = scheduler
        self.runner = runner
        self.auditor = Auditor(audit_rate, runner, scheduler.cache, scheduler.limits)
        self.stats = scheduler.cache.stats
        self.steps = 0
        """Steps committed since the start: what moves while the engine works."""
        self._grower = Grower(runner.grammars, frozenset(eos_token_ids), scheduler.limits.max_model_len)
        self._overlap = overlap
        self._launched: Launched | None = None
        self._sequences: dict[tuple[str, int], Sequence] = {}
        self._grammars = runner.grammars
        self._arrivals = 0

    @property
    def ledger(self) -> Ledger:
        return self.scheduler.ledger

    @property
    def idle(self) -> bool:
        return not self._sequences and self._launched is None

    def add(self, request: Request) -> None:
        """Take a request. Raises ``CannotFit`` before anything is changed."""
        groups = self.ledger.groups
        sequences = []
        for index in range(request.n):
            sequence = Sequence(request, index, self._arrivals + index, SequenceState(groups))
            sequence.arrived_seconds = time.monotonic()
            sequence.seed = secrets.randbits(64) if request.sampling.seed is None else request.sampling.seed
            sequences.append(sequence)
        self._refuse_impossible(request, sequences[0])
        self.auditor.defer()
        self._arrivals += request.n
        for sequence in sequences:
            self._sequences[request.id, sequence.index] = sequence
            if request.grammar is None:
                self.scheduler.add(sequence)
            else:
                self._grammars.prepare(sequence)

    def abort(self, request_id: str, index: int | None = None) -> None:
        """Forget a sequence, or all of a request. Unknown ones are ignored; no more deltas come."""
        for key in [k for k in self._sequences if k[0] == request_id and index in (None, k[1])]:
            sequence = self._sequences[key]
            sequence.finish = FinishReason.ABORT
            self._end(sequence)

    def step(self) -> list[Delta]:
        """One turn of the loop: plan, run, commit. Returns what came out of it, possibly of the step before."""
        hopeless = self._take_prepared()
        self.scheduler.cache.pins.sweep_expired()
        return hopeless + (self._step_overlapped() if self._overlap else self._step_plain())

    def audit(self) -> bool:
        """One step of an audit of hits, while the engine is idle; False when there is nothing to audit, or no time."""
        return self.idle and self.auditor.step()

    def _take_prepared(self) -> list[Delta]:
        """Sequences whose grammar is compiled enter the queue; those whose grammar is none end here."""
        deltas = []
        for sequence in self._grammars.take_prepared():
            self.scheduler.add(sequence)
            if (error := self._grammars.error(sequence)) is not None:
                deltas.append(self._give_up(sequence, error))
        return deltas

    def _step_plain(self) -> list[Delta]:
        """The specification of the loop: nothing is in flight when a step is planned."""
        plan = self.scheduler.schedule()
        if not plan:
            return self._without_progress()
        return self._commit(self._launch(plan))

    def _step_overlapped(self) -> list[Delta]:
        """Step N + 1 is planned and launched before step N's tokens are on the host."""
        before, self._launched = self._launched, None
        plan = self.scheduler.schedule() if before is None or not before.blocks_planning else None
        if plan:
            self._launched = self._launch(plan)
        elif before is None:
            return self._without_progress()
        return self._commit(before) if before else []

    def _launch(self, plan: StepPlan) -> Launched:
        self.auditor.watch(plan)
        return self.runner.launch(plan)

    def _commit(self, launched: Launched) -> list[Delta]:
        """The only place where a step's effects become visible: positions, tokens, ends."""
        started = time.perf_counter()
        sampled = launched.wait()
        self.steps += 1
        receipt = StepReceipt(self.steps)
        self.stats.observe("plait_step_seconds", time.perf_counter() - started, "phase=wait")
        deltas: list[Delta] = []
        for row in launched.plan.rows:
            row.sequence.in_flight -= 1
            row.sequence.pending -= row.samples
            self._settle(row, launched, receipt)
            self.auditor.settle(row)
            if row.sequence.finish is None and not row.sequence.tainted:
                delta = self._extend(row, sampled.get(row.sequence))
                if delta is not None:
                    deltas.append(delta)
            elif not row.sequence.in_flight:
                self._leave(row.sequence)
        self._observe(launched)
        return deltas

    def _settle(self, row: Row, launched: Launched, receipt: StepReceipt) -> None:
        """What the step did to the row's state: whether what it restored is true, and what can be found from now on."""
        sequence, cache = row.sequence, self.scheduler.cache
        if row.restore is not None:
            flaw = launched.flaw(row, self.ledger.groups)
            cache.restored(sequence, row.restore, flaw)
            sequence.tainted = flaw is not None
        written = {checkpoint.position for checkpoint in row.emits}
        sequence.emitting = tuple(position for position in sequence.emitting if position not in written)
        if sequence.tainted:
            for checkpoint in row.emits:
                checkpoint.discard(self.ledger)
            return
        cache.count(sequence)
        sequence.state.advance(row.start, row.count)
        sequence.receipt = receipt
        for checkpoint in row.emits:
            cache.publish(sequence, checkpoint, receipt)
            sequence.left.append(checkpoint.position)

    def _leave(self, sequence: Sequence) -> None:
        """The last launched step that named a finished, or a tainted, sequence is committed."""
        if sequence.finish is None:
            self.scheduler.start_over(sequence)
        else:
            self.scheduler.release(sequence)

    def _extend(self, row: Row, sampled: Sampled | None) -> Delta | None:
        """What a committed row means for its sequence; None while it is in the middle of its prompt."""
        sequence = row.sequence
        if sequence.first_scheduled_seconds is None:
            sequence.first_scheduled_seconds = time.monotonic()
            self.stats.observe("plait_queue_seconds", sequence.first_scheduled_seconds - sequence.arrived_seconds)
        if sampled is None and (row.end < sequence.length or sequence.request.sampling.max_tokens):
            return None
        first = sequence.announced is False
        sequence.announced = True
        tokens, end, error = self._grower.grow(sequence, None if sampled is None else sampled.token_id)
        if error is not None:
            return self._give_up(sequence, error)
        if end is not None:
            sequence.finish = end.reason
            self._end(sequence)
        scores = first and sequence.request.sampling.prompt_logprobs is not None
        return Delta(
            request_id=sequence.request.id,
            index=sequence.index,
            token_ids=tokens,
            logprobs=None if sampled is None or sampled.logprobs is None else (sampled.logprobs,),
            finish_reason=end.reason if end else None,
            stop_reason=end.token_id if end else None,
            cached_tokens=sequence.reuse.effective if first and sequence.reuse else 0,
            prompt_logprobs=(None, *sequence.prompt_logprobs) if scores else None,
            cache=cache_report(sequence, enabled=self.scheduler.cache.enabled) if first else None,
            pin=self.scheduler.cache.pin(sequence) if first and self._pins(sequence) else None,
        )

    @staticmethod
    def _pins(sequence: Sequence) -> bool:
        """Whether what its prompt left is to be pinned: once for each request."""
        return sequence.request.pin is not None and sequence.index == 0

    def _end(self, sequence: Sequence) -> None:
        """Take a finished sequence off the books; what launched steps still name is released when they commit."""
        self._sequences.pop((sequence.request.id, sequence.index), None)
        if not self._grammars.forget(sequence) and not sequence.in_flight:
            self.scheduler.release(sequence)

    def _without_progress(self) -> list[Delta]:
        """Nothing could be planned and nothing is in flight: idle, or a bug that must not become a silent loop."""
        if not self._sequences:
            return []
        if self._grammars.preparing or self.scheduler.cache.fetches.under_way:
            time.sleep(PAUSE_SECONDS)
            return []
        stuck = min(self._sequences.values(), key=lambda s: s.order)
        self.stats.count("plait_no_progress_total")
        return [self._give_up(stuck, "the engine could not make progress with this request; please report it")]

    def _give_up(self, sequence: Sequence, error: str | None) -> Delta:
        sequence.finish = FinishReason.ERROR
        self._end(sequence)
        request = sequence.request
        return Delta(request.id, sequence.index, (), finish_reason=FinishReason.ERROR, error=error)

    def _refuse_impossible(self, request: Request, sequence: Sequence) -> None:
        limit = self.scheduler.limits.max_model_len
        sampling, prompt = request.sampling, len(request.prompt)
        if request.grammar is not None and not self._grammars.available:
            raise CannotFit("this model's folder has no tokenizer.json, without which answers cannot follow a grammar")
        if prompt == 0:
            raise CannotFit("the prompt has no tokens")
        for ids in (request.prompt, sampling.logit_bias, sampling.stop_token_ids):
            if ids and not 0 <= min(ids) <= max(ids) < self.runner.vocab_size:
                raise CannotFit(f"a token id is not in the vocabulary of {self.runner.vocab_size} tokens")
        if prompt + min(sampling.max_tokens, 1) > limit:
            raise CannotFit(
                f"this model's maximum context length is {limit} tokens, the prompt has {prompt}; it must leave room "
                "for what is to be generated"
            )
        length = min(prompt + sampling.max_tokens, limit)
        if not self.scheduler.can_ever_fit(sequence, length):
            raise CannotFit(
                f"{length} tokens of prompt and max_tokens do not fit in the server's state memory even alone; "
                "shorten the prompt or lower max_tokens"
            )
        if request.pin is not None:
            try:
                self.scheduler.cache.refuse_pin(sequence)
            except PinRefused as refusal:
                raise CannotFit(f"it cannot be pinned: {refusal}") from refusal

    def _observe(self, launched: Launched) -> None:
        self.stats.observe("plait_step_seconds", launched.planned_seconds, "phase=build")
        self.stats.observe("plait_batch_tokens", launched.plan.tokens)
        self.stats.set("plait_requests", len(self.scheduler.running), "state=running")
        self.stats.set("plait_requests", len(self.scheduler.waiting), "state=waiting")

    def cache_order(self, order: CacheOrder) -> CacheAnswer:
        """What a tenant asks of its part of the cache. Between steps; what running sequences need stays."""
        return obey(order, self.scheduler.cache)

    def close(self) -> None:
        """Give up what is under way beside the steps; nothing writes to the arena any more."""
        self.auditor.defer()
        self.scheduler.cache.close()

    def upgrade_kernels(self) -> None:
        """Take over faster kernels that became ready. Only between steps with nothing in flight."""
        if self._launched is None:
            self.runner.upgrade_kernels()

    def counters(self) -> dict[str, dict[str, float]]:
        return dict(self.stats.counters)

    def gauges(self) -> Gauges:
        """The figures of this moment, those of the arena counted now."""
        running = (*(s.state.owned() for s in self.scheduler.running), *self.auditor.owned())
        arena = arena_gauges(self.scheduler.cache, running)
        return {**self.stats.gauges, **arena, **self.scheduler.cache.pins.gauges()}

    def check(self) -> None:
        """The books (invariant 13): everything taken is owned by a sequence that is known. Raises ``StateBug``."""
        holders = [*self.scheduler.running, *self.scheduler.waiting]
        known = set(map(id, self._sequences.values()))
        if any(id(s) not in known and not s.in_flight for s in holders):
            raise StateBug("a sequence that ended still has its place")
        in_flight = [] if self._launched is None else self._launched.plan.rows
        emitting = (checkpoint.owned() for row in in_flight for checkpoint in row.emits)
        self.scheduler.cache.tree.check()
        owned = (*(s.state.owned() for s in holders), *self.scheduler.cache.owned(), *emitting, *self.auditor.owned())
        self.ledger.check(owned)
