"""What a drill is done to: one prompt in a live engine, and what a break needs to get at its resume points."""

import random

import torch
from torch import Tensor

from plait_engine.engine import Engine
from plait_engine.request import Request, SamplingParams
from plait_engine.scheduler.step_plan import Row
from plait_engine.state.checkpoint import Checkpoint
from plait_engine.state.fetch import PATIENCE_SECONDS
from plait_engine.state.lease import Lease
from plait_engine.state.ledger import Units
from plait_engine.state.pools import StateBug
from plait_engine.state.restore import Restore
from plait_engine.state.resume_point import ResumePoint
from plait_engine.state.spec import Granule, GroupId
from plait_engine.state.tiers.slow import SlowTier

PROMPT, PREFIX, ANSWER = 53, 19, 4
"""Tokens. The prefix leaves a lower resume point to fall back to."""

Contents = dict[GroupId, Tensor]


class Subject:
    """One prompt in a namespace of its own, its resume points, and what a break needs to get at them."""

    def __init__(self, engine: Engine, salt: str) -> None:
        self.engine, self.salt = engine, salt
        self.cache, self.ledger = engine.scheduler.cache, engine.ledger
        vocabulary, words = engine.runner.vocab_size, random.Random(salt)
        self.prompt = tuple(words.randrange(vocabulary) for _ in range(PROMPT))
        self.lease: Lease | None = None
        self.strangers: list[Units] = []

    def prepare(self) -> tuple[list[int], Tensor]:
        """Cache the prefix and the prompt, each up to its last token but one; returns the cold answer."""
        cold = self.ask(self.prompt, salt=f"{self.salt}, cold")[0]
        for length in (PREFIX + 1, PROMPT):
            self.ask(self.prompt[:length], self.salt)
            for node in [*self.point.node.children.values()]:
                self.cache.tree.drop_leaf(node)
        return cold

    def ask(self, prompt: tuple[int, ...], salt: str) -> tuple[tuple[list[int], Tensor], int]:
        """Tokens, their logits ``[tokens, vocab]``, and how many tokens of the prompt were skipped."""
        engine, logits, tokens, cached = self.engine, list[Tensor](), list[int](), 0

        def tap(rows: tuple[Row, ...], values: Tensor) -> None:
            logits.extend(row.float().cpu().clone() for i, row in enumerate(values) if not rows[i].sequence.tainted)

        engine.runner.tap = tap
        sampling = SamplingParams(max_tokens=ANSWER, temperature=0.0, ignore_eos=True)
        engine.add(Request(id="drill", prompt=prompt, sampling=sampling, cache_salt=salt))
        while not engine.idle:
            for delta in engine.step():
                tokens.extend(delta.token_ids)
                cached += delta.cached_tokens
        engine.runner.tap = None
        # A restore that is found untrue when its step is over has sampled too; only the last answer was given.
        return (tokens, torch.stack(logits[-len(tokens) :])), cached

    @property
    def point(self) -> ResumePoint:
        match = self.cache.tree.match(f"\0{self.salt}", torch.tensor(self.prompt, dtype=torch.int32).numpy())
        assert match.best is not None
        return match.best

    @property
    def checkpoint(self) -> Checkpoint:
        assert self.point.checkpoint is not None
        return self.point.checkpoint

    def give_away(self, group: GroupId, unit: Granule) -> None:
        """Free a unit behind its holders' backs, under a lease, and let somebody else take it."""
        self.lease = self.cache.tree.lease(self.point)
        self.ledger.give_back(group, [unit] * self.ledger.references(group, unit))
        while (taken := self.ledger.take({group: 1})) is not None:
            self.strangers.append(taken)
            if taken[group] == [unit]:
                return
        raise StateBug("a unit that was freed cannot be taken")

    def offload(self) -> tuple[SlowTier, Contents]:
        """Bring the state to a tier; returns the tier, and what it has by group."""
        tier = SlowTier(self.ledger.arena, self.ledger.groups, polls=3)
        self.cache.use_tier(tier)
        if not self.cache.offload(self.point.node):
            raise StateBug("a state that nobody uses cannot be offloaded")
        return tier, next(iter(tier.contents.values()))

    def tidy(self) -> None:
        self.cache.tier, self.cache.fetches.patience_seconds = None, PATIENCE_SECONDS
        if self.lease is not None:
            self.cache.withdraw(Restore(self.lease.point, self.lease, ()))
        for units in self.strangers:
            for group, own in units.items():
                self.ledger.give_back(group, own)
