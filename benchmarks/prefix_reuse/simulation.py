"""One trace through the real tree, ledger and evictor, without a model.

Rules: requests one after another, in order of arrival; each is inserted when complete; the last block, partly filled,
is never cached; memory of running requests is not charged (the arena has room for the largest beyond the budget).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np
import torch

from benchmarks.prefix_reuse.geometry import PAGES, ROWS, Geometry
from benchmarks.prefix_reuse.traces import BLOCK, TraceRequest, expand
from plait_engine.state.arena import Arena
from plait_engine.state.checkpoint import Checkpoint, StepReceipt
from plait_engine.state.eviction import Evictor, LearnedEvictor, branch_position
from plait_engine.state.ledger import Demand, Ledger
from plait_engine.state.node import Tokens
from plait_engine.state.pools import choose_slab_bytes
from plait_engine.state.resume_point import Match
from plait_engine.state.reuse_model import Sighting
from plait_engine.state.spec import GRANULE_BYTES, Granule, Position, StateGroup
from plait_engine.state.tree import PrefixTree

NOTHING_SEEN = Sighting(0, None)
CHECKPOINTS_AT_ONCE = 3


class CountingLedger(Ledger):
    """A ledger without bytes. With ``shares``, pages and rows may each use only their part of the arena."""

    def __init__(self, n_bytes: int, groups: tuple[StateGroup, ...], shares: tuple[float, float] | None) -> None:
        self._limits: dict[int, int] = {}
        super().__init__(Arena(n_bytes, torch.device("meta")), groups)
        if shares is not None:
            self._limits = {g.id: int(self.slabs.total * s) for g, s in zip(groups, shares, strict=True)}

    def can_take(self, demand: Demand) -> bool:
        fits = (
            self.pools[group].slab_count + self.pools[group].slabs_for(units) <= self._limits[group]
            for group, units in demand.items()
            if self._limits
        )
        return super().can_take(demand) and all(fits)

    def _fill(self, group: Any, units: list[Granule], value: int) -> None: ...


@dataclass
class Totals:
    prompt: int = 0
    known: int = 0
    skipped: int = 0
    saved_seconds: float = 0.0
    lookup_seconds: list[float] = field(default_factory=list)
    insert_seconds: list[float] = field(default_factory=list)
    evict_seconds: list[float] = field(default_factory=list)
    evictions: dict[str, int] = field(default_factory=dict)

    def count(self, kind: str, reason: str) -> None:
        self.evictions[f"{kind}, {reason}"] = self.evictions.get(f"{kind}, {reason}", 0) + 1

    @property
    def hit_rate(self) -> float:
        """Percent of prompt tokens that the tree knew."""
        return 100 * self.known / max(1, self.prompt)

    @property
    def effective_hit_rate(self) -> float:
        """Percent of prompt tokens that were skipped."""
        return 100 * self.skipped / max(1, self.prompt)


MakeEvictor = Callable[[PrefixTree, "Simulation"], Evictor]


class Simulation:
    """``grain``: prompts are known in multiples of so many tokens only. ``branches``: checkpoints where they part."""

    def __init__(
        self,
        geometry: Geometry,
        budget_bytes: float,
        largest_prompt: int,
        make_evictor: MakeEvictor,
        page_size: int = BLOCK,
        grain: int = 1,
        branches: bool = True,
        shares: tuple[float, float] | None = None,
    ) -> None:
        self.geometry, self.grain, self.branches = geometry, grain, branches
        groups = geometry.groups(page_size)
        slab = choose_slab_bytes(groups)
        rows = CHECKPOINTS_AT_ONCE * geometry.rows
        self.room: Demand = {PAGES: -(-largest_prompt // page_size) + 1, ROWS: rows}
        units = {PAGES: slab // groups[0].unit_bytes, ROWS: slab // groups[1].unit_bytes}
        spare = sum(-(-n // units[group]) for group, n in self.room.items())
        spare += 1 + -(-geometry.rows // units[ROWS])  # The ledger's own page and slot.
        slabs = int(budget_bytes // slab) + spare
        part = None if shares is None else tuple((s * budget_bytes / slab + spare) / slabs for s in shares)
        self.ledger = CountingLedger(slabs * slab // GRANULE_BYTES * GRANULE_BYTES, groups, part)  # type: ignore[arg-type]
        self.now = 0.0
        self.number = -1
        self.page_size = page_size
        self.tree = PrefixTree(self.ledger, now=lambda: self.now)
        self.totals = Totals()
        self.evictor = make_evictor(self.tree, self)

    def run(self, trace: Iterable[TraceRequest]) -> Totals:
        for request in trace:
            self.serve(request)
        return self.totals

    def serve(self, request: TraceRequest) -> None:
        self.now, self.number = request.seconds, self.number + 1
        tokens = expand(request.blocks(), request.block)
        tokens = tokens[: len(tokens) // self.grain * self.grain]
        match, resume = self._look_up(request, tokens)
        if len(tokens):
            self._insert(tokens, match, resume)

    def _look_up(self, request: TraceRequest, tokens: Tokens) -> tuple[Match, int]:
        asked = np.append(tokens, np.int32(-1))  # The last token is computed in any case; here it is one of the tail.
        started = perf_counter()
        match = self.tree.match("", asked)
        self.totals.lookup_seconds.append(perf_counter() - started)
        resume = match.best.position if match.best is not None else 0
        self.totals.prompt += request.prompt
        self.totals.known += min(match.known, request.prompt - 1)
        self.totals.skipped += min(resume, request.prompt - 1)
        self.totals.saved_seconds += self.geometry.seconds(0, resume)
        return match, resume

    def _insert(self, tokens: Tokens, match: Match, resume: int) -> None:
        places = self._places(tokens, match, resume)
        lease = None if match.best is None else self.tree.lease(match.best)
        first, last = match.known // self.page_size, -(-len(tokens) // self.page_size)
        units = self.ledger.take({PAGES: last - first, ROWS: len(places) * self.geometry.rows})
        if units is None:
            raise RuntimeError("the room for running requests is too small")
        rows, pages = units[ROWS], [Granule(0)] * first + units[PAGES]
        started = perf_counter()
        for i, place in enumerate(places):
            own = rows[i * self.geometry.rows : (i + 1) * self.geometry.rows]
            checkpoint = Checkpoint(Position(place), "simulated", {ROWS: own})
            checkpoint.publish(StepReceipt(self.number), None)
            self.tree.insert("", tokens[:place], {PAGES: pages}, checkpoint)
        self.totals.insert_seconds.append(perf_counter() - started)
        self.ledger.give_back(PAGES, units[PAGES])
        if lease is not None:
            lease.give_back()
        started = perf_counter()
        self.evictor.make_room(self.room)
        self.totals.evict_seconds.append(perf_counter() - started)

    def _places(self, tokens: Tokens, match: Match, resume: int) -> list[int]:
        """Where this prompt leaves checkpoints: at its end, and where others part from it."""
        sighting = NOTHING_SEEN
        if isinstance(self.evictor, LearnedEvictor):
            sighting = self.evictor.observe("", tokens, len(tokens))
            branch = branch_position(match, sighting)
        else:
            branch = match.known
        places = {len(tokens)}
        if self.branches and branch is not None:
            places.add(branch // self.grain * self.grain)
        return sorted(place for place in places if place > resume)
