"""What traffic teaches about reuse: how likely is it that a prefix is asked for again, given how it came to be.

Every prompt that arrives is remembered by hashes of its prefixes, whether or not the cache keeps anything of it, so
what is learned does not depend on what was evicted. A *record* stands for one position worth resuming at. It has a
class and an age, and events are counted by both:

- hits: a prompt arrives whose deepest known record this is;
- exposure: seconds that records of the class spent at that age without a hit.

Hits over exposure is the hazard of reuse. Cells with few events borrow from their kind as a whole, scaled by what the
two features of a class (turns so far, length of the unshared suffix) have shown one by one; where nothing has been
seen yet, the hazard falls as 1/age, which is plain recency. From hazards follow the *index*: the best ratio, over all
horizons, of the probability of a hit within the horizon to the expected seconds until hit or horizon. It is the
Gittins index of holding something in scarce space, and the age-conditional "hit density" of LHD (Beckmann et al.,
NSDI 2018, section 3) with the horizon chosen optimally. No constant in here is a property of a workload.
"""

import math
from bisect import bisect_right
from collections import defaultdict, deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

GRID = 256
"""Tokens between the prefixes of a prompt that are remembered."""
AGES = [0.0, *(2 ** (i / 2) for i in range(28))]
"""Borders of the age bins, seconds: up to three hours, each 1.4 times the one before."""
BINS = len(AGES)
REBUILD_EVERY = 200
FADE = 0.99
"""What the past counts, at each rebuild: half after 14,000 prompts."""
PRIOR_ALPHA = 0.3
"""Hits per unit of log age where nothing is known yet."""
KIND_EVENTS, CELL_EVENTS, FACTOR_EVENTS = 2.0, 30.0, 2.0
"""Weights of the priors, in events: of 1/age for a kind, of the scaled kind for a cell, of 1 for a factor."""

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_WIDTHS = np.diff(np.array([*AGES, 2 * AGES[-1]]))
_MIDDLES = np.maximum(np.array(AGES) + _WIDTHS / 2, 1.0)


class Kind(StrEnum):
    TAIL = "tail"
    """The end of a prompt that nothing has gone on from."""
    PASSED = "passed"
    """The end of a prompt that one later prompt went on from."""
    BRANCH = "branch"
    """Where prompts part."""


class ReuseClass(NamedTuple):
    kind: Kind
    first: int
    """Turns so far (tail) or uses (others), on a coarse scale."""
    second: int
    """log2 of the tokens that were new in this prompt (tail), else 0."""


@dataclass(eq=False, slots=True)
class Record:
    """One remembered position. ``bin`` is the age bin that it is counted in, ``used_at`` when its age was 0."""

    klass: ReuseClass
    tail: ReuseClass
    turns: int
    used_at: float
    branch: bool = False
    uses: int = 0
    continued: int = 0
    """Prompts that went on from here."""
    bin: int = 0

    def classify(self) -> ReuseClass:
        if self.branch or self.continued > 1:
            return ReuseClass(Kind.BRANCH, _coarse(self.uses), 0)
        if self.continued:
            return ReuseClass(Kind.PASSED, min(self.uses, 2), 0)
        return self.tail


@dataclass
class _Counts:
    """Events of one class by age bin. Those still open are counted and summed by when they entered their bin."""

    hits: Floats = field(default_factory=lambda: np.zeros(BINS))
    seconds: Floats = field(default_factory=lambda: np.zeros(BINS))
    open: list[int] = field(default_factory=lambda: [0] * BINS)
    entered: list[float] = field(default_factory=lambda: [0.0] * BINS)

    def exposure(self, now: float) -> Floats:
        under_way = np.array(self.open, np.float64) * now - np.array(self.entered)
        return np.asarray(self.seconds + np.maximum(under_way, 0.0))


class Sighting(NamedTuple):
    """What a new prompt looks like from memory."""

    known: int
    """Tokens, in steps of ``GRID``, that an earlier prompt shared."""
    branch: int | None
    """Where a checkpoint is worth having since prompts part there, whether or not the tree still has the pages."""


class Found(NamedTuple):
    record: Record
    position: int


class ReuseModel:
    """Learns from ``observe``; answers ``index``. ``max_points`` bounds its memory (about 150 bytes each)."""

    def __init__(self, max_points: int = 1 << 18) -> None:
        self._points: dict[int, Record | None] = {}
        self._max_points = max_points
        self._counts: defaultdict[ReuseClass, _Counts] = defaultdict(_Counts)
        self._aging: list[deque[tuple[float, Record]]] = [deque() for _ in range(BINS - 1)]
        self._tables: dict[ReuseClass, list[float]] = {}
        self._defaults = {kind: _index(PRIOR_ALPHA / _MIDDLES[None, :])[0].tolist() for kind in Kind}
        self._observed = 0

    # Learn -----------------------------------------------------------------------------------------------------------

    def observe(self, namespace: str, tokens: NDArray[np.int32], end: int, now: float) -> Sighting:
        """A prompt arrives, once for each request. A checkpoint will be kept at ``end``, or near it."""
        self._grow_older(now)
        names = prefix_names(namespace, tokens[: end // GRID * GRID])
        known = next((i for i, name in enumerate(names) if name not in self._points), len(names))
        depth, record = self._deepest(names[:known])
        turns, branch = 0, self._branch(known, depth, len(names), record)
        if record is not None:
            turns = 0 if record.branch or record.continued else record.turns
            self._hit(record, now)
        if branch is not None and branch > depth:
            self._points[names[branch - 1]] = self._open(Record(_FRESH_BRANCH, _FRESH_BRANCH, 0, now, branch=True))
        self._remember(names)
        if names and self._points[names[-1]] is None:
            tail = ReuseClass(Kind.TAIL, _coarse(turns + 1), _log2(end - depth * GRID))
            self._points[names[-1]] = self._open(Record(tail, tail, turns + 1, now))
            if record is not None:
                record.continued += 1
        if record is not None:
            record.klass = record.classify()
            self._open(record)
        self._observed += 1
        if self._observed % REBUILD_EVERY == 0 or self._observed in (25, 50, 100):
            self._rebuild(now)
        return Sighting(known * GRID, None if branch is None else branch * GRID)

    def _deepest(self, names: list[int]) -> tuple[int, Record | None]:
        for i in range(len(names), 0, -1):
            record = self._points[names[i - 1]]
            if record is not None:
                return i, record
        return 0, None

    def _branch(self, known: int, depth: int, length: int, record: Record | None) -> int | None:
        """Prompts part inside what one of them remembered as one piece, or at an end that was gone on from before."""
        if depth < known < length:
            return known
        parted = record is not None and (record.branch or record.continued > 0)
        return depth if parted and depth == known < length else None

    def _remember(self, names: list[int]) -> None:
        points = self._points
        for name in names:
            points[name] = points.pop(name, None)
        while len(points) > self._max_points:
            forgotten = points.pop(next(iter(points)))
            if forgotten is not None:
                self._close(forgotten, forgotten.used_at + AGES[forgotten.bin])
                forgotten.bin = -1

    def _open(self, record: Record) -> Record:
        """Its age is 0 from now on."""
        counts = self._counts[record.klass]
        record.bin = 0
        counts.open[0] += 1
        counts.entered[0] += record.used_at
        self._aging[0].append((record.used_at, record))
        return record

    def _close(self, record: Record, now: float) -> None:
        """Take it out of its bin, and count the seconds that it spent there."""
        counts, entered = self._counts[record.klass], record.used_at + AGES[record.bin]
        counts.open[record.bin] -= 1
        counts.entered[record.bin] -= entered
        counts.seconds[record.bin] += max(0.0, now - entered)

    def _hit(self, record: Record, now: float) -> None:
        if record.bin >= 0:
            self._close(record, now)
            self._counts[record.klass].hits[record.bin] += 1
        record.used_at = now
        record.uses += 1

    def _grow_older(self, now: float) -> None:
        """Move records whose age has passed the border of their bin. Within a bin they are in order of use."""
        for bin_, queue in enumerate(self._aging):
            width = AGES[bin_ + 1]
            while queue and queue[0][0] + width <= now:
                used_at, record = queue.popleft()
                if record.used_at != used_at or record.bin != bin_:
                    continue
                self._close(record, used_at + width)
                record.bin = bin_ + 1
                counts = self._counts[record.klass]
                counts.open[bin_ + 1] += 1
                counts.entered[bin_ + 1] += used_at + width
                if bin_ + 1 < BINS - 1:
                    self._aging[bin_ + 1].append((used_at, record))

    # Estimate --------------------------------------------------------------------------------------------------------

    def _rebuild(self, now: float) -> None:
        for kind in Kind:
            classes = [c for c in self._counts if c.kind is kind]
            if not classes:
                continue
            hits = np.array([self._counts[c].hits for c in classes])
            exposure = np.array([self._counts[c].exposure(now) for c in classes])
            base = _base_hazard(hits.sum(0), exposure.sum(0))
            factors = _factors(classes, hits.sum(1), (exposure * base).sum(1))
            prior = base * factors[:, None]
            tables = _index((hits + CELL_EVENTS) / (exposure + CELL_EVENTS / prior))
            self._tables.update(zip(classes, tables.tolist(), strict=True))
            self._defaults[kind] = _index(base[None, :])[0].tolist()
        for counts in self._counts.values():
            counts.hits *= FADE
            counts.seconds *= FADE

    # Answer ----------------------------------------------------------------------------------------------------------

    def find(self, namespace: str, tokens: NDArray[np.int32]) -> Found | None:
        """The deepest record on the way to the end of ``tokens``."""
        names = prefix_names(namespace, tokens)
        for i in range(len(names), 0, -1):
            record = self._points.get(names[i - 1])
            if record is not None:
                return Found(record, i * GRID)
        return None

    def index(self, klass: ReuseClass, age: float) -> tuple[float, float]:
        """Expected hits per second of holding something of this class and age, and the age up to which that holds."""
        bin_ = bisect_right(AGES, max(age, 0.0)) - 1
        table = self._tables.get(klass) or self._defaults[klass.kind]
        return table[bin_], AGES[bin_ + 1] if bin_ + 1 < BINS else math.inf


def prefix_names(namespace: str, tokens: NDArray[np.int32]) -> list[int]:
    """A 64-bit name for each prefix of ``tokens`` that is a multiple of ``GRID`` long. A collision costs time only."""
    blocks = len(tokens) // GRID
    if not blocks:
        return []
    mixed = (tokens[: blocks * GRID].astype(np.uint64) + np.uint64(1)) * _MULTIPLIER
    mixed ^= mixed >> np.uint64(29)
    sums = (mixed.reshape(blocks, GRID) * _powers(GRID)).sum(1, dtype=np.uint64)
    sums ^= sums >> np.uint64(31)
    chained = np.cumsum(sums * _powers(blocks), dtype=np.uint64)
    return [hash((namespace, name)) for name in chained.tolist()] if namespace else list(chained.tolist())


_POWERS: list[NDArray[np.uint64]] = [np.ones(1, np.uint64)]


def _powers(count: int) -> NDArray[np.uint64]:
    if len(_POWERS[0]) < count:
        _POWERS[0] = np.cumprod(np.full(2 * count, _MULTIPLIER, np.uint64), dtype=np.uint64)
    return _POWERS[0][:count]


def _base_hazard(hits: Floats, exposure: Floats) -> Floats:
    """Hazard of a whole kind by age. Where little was seen it continues what younger ages showed, as 1/age."""
    base = np.empty(BINS)
    near_hits, near_seconds = PRIOR_ALPHA, 1.0
    for i in range(BINS):
        prior = near_hits / near_seconds / _MIDDLES[i]
        base[i] = (hits[i] + KIND_EVENTS) / (exposure[i] + KIND_EVENTS / prior)
        near_hits = max(near_hits / 2 + hits[i], 1e-3)
        near_seconds = max(near_seconds / 2 + exposure[i] / _MIDDLES[i], 1e-2)
    return base


def _factors(classes: list[ReuseClass], hits: Floats, expected: Floats) -> Floats:
    """How much likelier than its kind each class is reused: a factor for each feature, then one of its own."""
    columns = [np.unique([c[i] for c in classes], return_inverse=True)[1] for i in (1, 2)]
    factors = [np.ones(column.max() + 1) for column in columns]
    for _ in range(3):
        for own, other in ((0, 1), (1, 0)):
            others = expected * factors[other][columns[other]]
            seen = np.bincount(columns[own], hits) + FACTOR_EVENTS
            factors[own] = seen / (np.bincount(columns[own], others) + FACTOR_EVENTS)
    joint = factors[0][columns[0]] * factors[1][columns[1]]
    weight = 2 * FACTOR_EVENTS
    return np.asarray(joint * (hits + weight) / (expected * joint + weight))


def _index(hazard: Floats) -> Floats:
    """``[classes, bins]``: the best over all horizons of P(hit by then) / E[seconds until hit or then]."""
    missed = np.exp(-hazard * _WIDTHS)
    spent = (1 - missed) / hazard
    index = np.empty_like(hazard)
    for i in range(BINS):
        reach = np.cumprod(np.concatenate([np.ones((len(hazard), 1)), missed[:, i:-1]], axis=1), axis=1)
        hit = np.cumsum(reach * (1 - missed[:, i:]), axis=1)
        index[:, i] = (hit / np.cumsum(reach * spent[:, i:], axis=1)).max(axis=1)
    return index


def _coarse(count: int) -> int:
    """1, 2, 3, 4 to 5, 6 to 8, 9 and more."""
    return bisect_right((1, 2, 3, 4, 6, 9), count)


def _log2(tokens: int) -> int:
    """Bits of a length, everything up to two grid steps and from 32,768 on being alike."""
    return min(max(tokens.bit_length(), 10), 16)


_FRESH_BRANCH = ReuseClass(Kind.BRANCH, 0, 0)
