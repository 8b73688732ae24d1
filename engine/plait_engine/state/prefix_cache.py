"""What the scheduler asks of the cache: from where can this sequence go on, take memory, keep what was computed."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from plait_engine.pin import PinOutcome
from plait_engine.sequence import Sequence
from plait_engine.state.checkpoint import Checkpoint, StepReceipt, WindowPages
from plait_engine.state.eviction import LearnedEvictor, branch_position
from plait_engine.state.fetch import Fetch, Fetches
from plait_engine.state.ledger import Demand, Ledger, Units
from plait_engine.state.node import Node
from plait_engine.state.offload import offload
from plait_engine.state.pins import PinRefused, Pins
from plait_engine.state.placement import Placement
from plait_engine.state.restore import Flaw, Restore, find_flaw, reasons
from plait_engine.state.resume_point import NO_MATCH, Match, ResumePoint
from plait_engine.state.spec import GroupId, Position
from plait_engine.state.tiers.tier import Tier
from plait_engine.state.tree import PrefixTree
from plait_engine.state.unit_copy import UnitCopier
from plait_engine.stats import Stats


@dataclass(frozen=True)
class Reuse:
    """What one sequence found at its first admission; ``reason`` says why ``effective`` is less than ``known``."""

    known: int
    effective: int
    reason: str | None


class PrefixCache:
    """Owns the tree. Where it is not ``enabled`` nothing is found, nothing is kept, and it costs nothing."""

    def __init__(
        self,
        ledger: Ledger,
        copier: UnitCopier,
        placement: Placement,
        stats: Stats,
        *,
        fingerprint: str,
        enabled: bool,
        pin_slabs: int | None = None,
    ) -> None:
        self.ledger = ledger
        self.copier = copier
        self.placement = placement
        self.stats = stats
        self.fingerprint = fingerprint
        self.enabled = enabled
        self.tree = PrefixTree(ledger)
        self.evictor = LearnedEvictor(self.tree, count=self.evicted, move=copier.copy, offload=self.offload)
        self.tier: Tier | None = None
        self.fetches = Fetches(self.tree, copier, self.take)
        self.pins = Pins(self.tree, stats, ledger.slabs.total // 4 if pin_slabs is None else pin_slabs)
        self._slot_demand: Demand = {g.id: g.units_per_slot for g in ledger.groups if not g.paged}
        self._condemned: list[Checkpoint] = []
        """Found broken while somebody else still has a lease on them."""
        self._broken: list[Node] = []
        """Nodes without their pages, still in the tree since somebody has a lease on them."""
        self._declare()

    @classmethod
    def disabled(cls, ledger: Ledger) -> "PrefixCache":
        copier = UnitCopier(ledger.arena, ledger.groups)
        return cls(ledger, copier, Placement.for_groups(ledger.groups), Stats(), fingerprint="", enabled=False)

    def _declare(self) -> None:
        """Series whose labels are known exist from the start, so that a rate over them never misses the first one."""
        kinds = {group.spec.kind for group in self.ledger.groups}
        for name, series in {
            "plait_prefix_lookup_tokens_total": [""],
            "plait_prefix_hit_tokens_total": [""],
            "plait_prefix_effective_hit_tokens_total": [""],
            "plait_prefix_lost_tokens_total": ["reason=no_checkpoint", "reason=restore_failed", "reason=restoring"],
            "plait_prefix_unused_total": ["reason=bypass", "reason=no_match", "reason=too_short"],
            "plait_state_restores_total": [f"state={kind},tier=arena" for kind in kinds],
            "plait_state_restore_failures_total": [
                f"state={group.spec.kind},reason={reason}" for group in self.ledger.groups for reason in reasons(group)
            ],
            "plait_checkpoint_skipped_total": ["reason=no_memory"],
            "plait_evictions_total": [
                "kind=checkpoint,reason=capacity",
                "kind=leaf,reason=capacity",
                "kind=leaf,reason=unreachable",
                "kind=checkpoint,reason=dropped",
                "kind=leaf,reason=dropped",
            ],
            "plait_preemptions_total": ["outcome=recomputed", "outcome=restored"],
        }.items():
            for labels in series:
                self.stats.count(name, 0, labels)

    def use_tier(self, tier: Tier) -> None:
        """From now on, states that are evicted go there."""
        self.tier = tier
        self.stats.count("plait_evictions_total", 0, "kind=checkpoint,reason=offloaded")
        for group in self.ledger.groups:
            if not group.full:
                self.stats.count("plait_state_restores_total", 0, f"state={group.spec.kind},tier={tier.name}")

    def close(self) -> None:
        """The engine ends."""
        self.fetches.recall()
        if self.tier is not None:
            self.tier.close()

    # Memory -----------------------------------------------------------------------------------------------------------

    def take(self, demand: Demand, *, fresh: bool = True) -> Units | None:
        """``demand`` from what is free, else from what is cached; None, and nothing lost, when that is not enough."""
        units = self.ledger.take(demand, fresh=fresh)
        if units is None and self.make_room(demand):
            units = self.ledger.take(demand, fresh=fresh)
        return units

    def make_room(self, demand: Demand) -> bool:
        """See that ``demand`` can be taken; False, and nothing lost, when even all that is cached is not enough."""
        return self.evictor.make_room(demand) if self.enabled else self.ledger.can_take(demand)

    def offload(self, node: Node) -> bool:
        """Whether a node's checkpoint lies in the tier now instead of in the arena."""
        if self.tier is None or node.checkpoint is None:
            return False
        return offload(node.checkpoint, self.tier, self.ledger, self.copier)

    def evicted(self, kind: str, reason: str) -> None:
        self.stats.count("plait_evictions_total", labels=f"kind={kind},reason={reason}")

    # Going on from what is there --------------------------------------------------------------------------------------

    def match(self, sequence: Sequence) -> Match:
        """What the tree knows of the sequence's tokens, with the resume points that are whole. Broken ones go."""
        if not self.enabled or sequence.request.sampling.prompt_logprobs is not None:
            return NO_MATCH  # What a prompt token scored is not part of any state, so it must be computed again.
        tokens = np.array(sequence.tokens, np.int32)
        match = self.tree.match(sequence.namespace, tokens)
        known = match.known
        while match.best is not None and (flaw := find_flaw(match.best, self.ledger, self.fingerprint)) is not None:
            sequence.flawed, point = True, match.best
            self.drop(point, flaw)
            match = self.tree.match(sequence.namespace, tokens)
            if match.best == point:  # Nothing but a lease keeps it in the tree.
                return Match(known, ())
        return Match(known, match.points, match.parts)

    def bring(self, sequence: Sequence, match: Match) -> Match | None:
        """The match as it can be used at once; None: its best resume point is on its way from a tier, and the sequence
        waits for it. Where there is no room to bring it, the ones before it are what is left.
        """
        while match.best is not None and match.best.away:
            if self.fetches.wait_for(sequence, match.best):
                return None
            sequence.passed_over = True
            match = Match(match.known, match.points[1:], match.parts)
        return match

    def poll(self) -> None:
        """Between steps: what has come from a tier."""
        for fetch, flaw in self.fetches.poll():
            if flaw is None:
                self._arrived(fetch)
            else:
                for sequence in fetch.waiting:
                    sequence.flawed = True
                self.drop(fetch.point, flaw)

    def _arrived(self, fetch: Fetch) -> None:
        checkpoint = fetch.point.checkpoint
        assert checkpoint is not None
        assert self.tier is not None
        for group in checkpoint.owned():
            kind = self.ledger.groups[group].spec.kind
            self.stats.count("plait_state_restores_total", labels=f"state={kind},tier={self.tier.name}")

    def leave(self, sequence: Sequence) -> None:
        """It was admitted, or has gone: it waits for nothing any more."""
        self.fetches.leave(sequence)
        self._bury()

    def recall(self) -> bool:
        """Whether there was something on its way, whose memory is free now."""
        recalled = self.fetches.recall()
        self._bury()
        return recalled

    def admit(self, sequence: Sequence, match: Match, max_chunk: int) -> bool:
        """Give the sequence all that its tokens need, going on from the best resume point; or change nothing."""
        point, state = match.best, sequence.state
        lease = self.tree.lease(point) if point else None
        position = point.position if point else Position(0)
        units = self.take(state.admission_demand(sequence.length, max_chunk, position))
        if units is None:
            if lease is not None:
                lease.give_back()
            return False
        self.fetches.leave(sequence)
        state.admit(units)
        if point is not None and lease is not None:
            pages = {g.id: self.tree.pages_up_to(point, g.id) for g in self.ledger.groups if g.full}
            copies = state.resume(position, pages, point.checkpoint, self.ledger)
            sequence.restore = Restore(point, lease, tuple(copies))
            sequence.scheduled = position
        if self.enabled:
            sequence.marks = self._marks(sequence, match, position)
        if not sequence.reuse_counted:
            sequence.reuse = self._found(sequence, match, position)
        if sequence.preempted:
            sequence.preempted = False
            self.stats.count("plait_preemptions_total", labels=f"outcome={'restored' if position else 'recomputed'}")
        return True

    def _marks(self, sequence: Sequence, match: Match, position: Position) -> list[Position]:
        """Where the sequence is to leave checkpoints. Its first look is also what the evictor learns from."""
        marks, branch = sequence.request.marks, match.known
        if sequence.admissions == 0 and sequence.index == 0:
            end = max((mark for mark in marks if mark < sequence.prompt_length), default=sequence.prompt_length - 1)
            sighting = self.evictor.observe(sequence.namespace, sequence.prompt_tokens, end)
            branch = max(branch, branch_position(match, sighting) or 0)
        return self.placement.positions(len(sequence.tokens), marks, branch, match, position)

    @staticmethod
    def _found(sequence: Sequence, match: Match, position: Position) -> Reuse:
        before = sequence.reuse.known if sequence.reuse else 0  # Whose restore failed: what was known then, is lost.
        known = max(before, min(match.known, sequence.prompt_length - 1))
        reason = "restore_failed" if sequence.flawed else "restoring" if sequence.passed_over else "no_checkpoint"
        return Reuse(known, position, reason if position < known else None)

    def count(self, sequence: Sequence) -> None:
        """A first step of ``sequence`` is committed, and what it restored was true: only then a hit is a hit.

        Counted once, whatever comes later; a prompt once, whatever ``n`` is.
        """
        if sequence.reuse_counted or sequence.reuse is None:
            return
        sequence.reuse_counted = True
        if sequence.index:
            return
        known, effective, reason = sequence.reuse.known, sequence.reuse.effective, sequence.reuse.reason
        self.stats.count("plait_prefix_lookup_tokens_total", sequence.prompt_length)
        self.stats.count("plait_prefix_hit_tokens_total", known)
        self.stats.count("plait_prefix_effective_hit_tokens_total", effective)
        if reason:
            self.stats.count("plait_prefix_lost_tokens_total", known - effective, f"reason={reason}")
        if not known:
            bypass = not self.enabled or sequence.request.sampling.prompt_logprobs is not None
            unused = "bypass" if bypass else "too_short" if sequence.prompt_length < 2 else "no_match"
            self.stats.count("plait_prefix_unused_total", labels=f"reason={unused}")

    def restored(self, sequence: Sequence, restore: Restore, flaw: Flaw | None) -> None:
        """The step that carried a restore is over."""
        restore.lease.give_back()
        if flaw is not None:
            sequence.flawed = True
            self.drop(restore.point, flaw)
        else:
            for group in self.ledger.groups:
                self.stats.count("plait_state_restores_total", labels=f"state={group.spec.kind},tier=arena")
        self._bury()

    def withdraw(self, restore: Restore) -> None:
        """The sequence went before its restore was launched."""
        restore.lease.give_back()
        self._bury()

    def drop(self, point: ResumePoint, flaw: Flaw) -> None:
        """A resume point that cannot be used: count it, and see that nobody finds it again."""
        self.stats.count("plait_state_restore_failures_total", labels=f"state={flaw.state},reason={flaw.reason}")
        node, checkpoint = point.node, point.checkpoint
        if flaw.node is not None:
            self._broken.append(flaw.node)
        elif checkpoint is not None and node.checkpoint is checkpoint:
            self._condemned.append(checkpoint)
            self.tree.detach_checkpoint(node)
        self._bury()

    def quarantine(self, namespace: str, tokens: tuple[int, ...]) -> int:
        """Something on the way to ``tokens`` gave a wrong answer, and nothing says which part of it: all of the way
        goes, and all that hangs on it. Returns how many tokens are not known any more.
        """
        path = self.tree.known_path(namespace, np.array(tokens, np.int32))
        if not path:
            return 0
        gone = sum(len(node.tokens) for node in path[0].subtree())
        self._broken.append(path[0])
        self._bury()
        return gone

    def _bury(self) -> None:
        """What was found broken goes as soon as no lease holds it."""
        for node in self._broken:
            self._condemned.extend(self.tree.cut(node))
        self._broken = [node for node in self._broken if node.pages]
        for checkpoint in [c for c in self._condemned if not c.leases]:
            self._condemned.remove(checkpoint)
            checkpoint.discard(self.ledger)

    # Keeping what was computed ----------------------------------------------------------------------------------------

    def reserve(self, sequence: Sequence, position: Position) -> Checkpoint | None:
        """Room for a checkpoint that the step being planned will write; None when there is none, which is no error."""
        slots = self.take(self._slot_demand, fresh=False)  # the scan writes all of it
        if slots is None:
            self.stats.count("plait_checkpoint_skipped_total", labels="reason=no_memory")
            return None
        return Checkpoint(position, self.fingerprint, slots, self._share_windows(sequence, position))

    def publish(self, sequence: Sequence, checkpoint: Checkpoint, receipt: StepReceipt) -> None:
        """The step that wrote ``checkpoint`` is committed: what lies before it can be found from now on."""
        checkpoint.publish(receipt, self.copier.checksum(checkpoint.slots) if checkpoint.slots else None)
        tokens = np.array(sequence.tokens[: checkpoint.position], np.int32)
        pages = {g.id: sequence.state.runs[g.id].pages for g in self.ledger.groups if g.full}
        self.tree.insert(sequence.namespace, tokens, pages, checkpoint)

    def keep(self, sequence: Sequence) -> None:
        """A sequence ends, or is preempted: what it owns at its position goes to the tree. Nothing is copied.

        Before: the sequence owns its slot rows and references on its pages. After: the tree owns the rows and has
        references of its own on the pages, and ``SequenceState.release`` gives back those of the sequence.
        """
        position, receipt = sequence.state.position, sequence.receipt
        if not self.enabled or receipt is None or sequence.tainted:
            return
        slots, sequence.state.slots = sequence.state.slots, {}
        checkpoint = Checkpoint(position, self.fingerprint, slots, self._share_windows(sequence, position))
        self.publish(sequence, checkpoint, receipt)
        sequence.receipt = None

    def _share_windows(self, sequence: Sequence, position: Position) -> dict[GroupId, WindowPages]:
        windows: dict[GroupId, WindowPages] = {}
        for group in self.ledger.groups:
            if group.paged and not group.full:
                windows[group.id] = sequence.state.runs[group.id].window_at(position)
                self.ledger.share(group.id, windows[group.id].pages)
        return windows

    # Keeping it for longer --------------------------------------------------------------------------------------------

    def refuse_pin(self, sequence: Sequence) -> None:
        """Raises ``PinRefused`` when what the sequence asks to have pinned has no chance, before it is computed."""
        if not self.enabled:
            raise self.pins.refuse("prefix reuse is off on this server, so nothing can be pinned")
        if sequence.prompt_length < 2:
            raise self.pins.refuse("a prompt of one token is computed anyway: there is nothing to pin")
        tokens = sequence.prompt_tokens[: self._pin_position(sequence)]
        self.pins.refuse_hopeless(sequence.request.tenant, sequence.namespace, tokens)

    def pin(self, sequence: Sequence) -> PinOutcome:
        """The prompt of ``sequence`` is computed: pin what it asks for."""
        order, wanted = sequence.request.pin, self._pin_position(sequence)
        assert order is not None
        points = self.tree.match(sequence.namespace, sequence.prompt_tokens).points  # Best, that is last, first.
        at = next((point for point in points if point.position == wanted), points[0] if points else None)
        try:
            if at is None or at.position < wanted:
                raise self.pins.refuse("there was no room for its state when it was computed; try again later")
            tokens = sequence.prompt_tokens[: at.position]
            pin = self.pins.pin(sequence.request.tenant, sequence.namespace, tokens, at, order)
        except PinRefused as refusal:
            return PinOutcome(None, str(refusal))
        return PinOutcome(self.pins.report(pin))

    @staticmethod
    def _pin_position(sequence: Sequence) -> int:
        """Where the order says, else at the last place that others can go on from."""
        order, last = sequence.request.pin, sequence.prompt_length - 1
        if order is not None and order.position is not None:
            return min(order.position, last)
        return max((mark for mark in sequence.request.marks if mark <= last), default=last)

    # Books ------------------------------------------------------------------------------------------------------------

    def owned(self) -> Iterator[Units]:
        yield from self.tree.owned()
        yield from (checkpoint.owned() for checkpoint in self._condemned)
        yield from self.fetches.owned()
