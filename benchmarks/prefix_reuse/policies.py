"""Eviction policies to compare with. Each is a rule from the literature, on the same entries as our own."""

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable

from benchmarks.prefix_reuse.traces import BLOCK, TraceRequest, expand
from plait_engine.state.eviction import Entry, LeastRecentlyUsed, Score
from plait_engine.state.node import Node

Flops = Callable[[int, int], float]


class GreedyDual(LeastRecentlyUsed):
    """GreedyDual-Size-Frequency (Cherkasova, HPL-98-69): inflation at last use + uses x cost / size."""

    def __init__(self) -> None:
        self._inflation = 0.0
        self._at_use: dict[Node, tuple[int, float]] = {}

    def score(self, entry: Entry, now: float) -> Score:  # noqa: ARG002
        node = entry.node
        used, inflation = self._at_use.get(node, (-1, 0.0))
        if used != node.last_use:
            inflation = self._inflation
            self._at_use[node] = (node.last_use, inflation)
        return Score(inflation + (node.hits + 1) * (entry.end - entry.resume) / max(1, entry.n_bytes))

    def evicted(self, entry: Entry, score: float) -> None:  # noqa: ARG002
        self._inflation = max(self._inflation, score)

    def forget(self, node: Node) -> None:
        self._at_use.pop(node, None)


class FlopAware(LeastRecentlyUsed):
    """Marconi (Pan et al., MLSys 2025, section 4.2): recency + alpha x FLOPs saved per byte, both scaled to [0, 1].

    Recency is scaled by how long things stay at present, efficiency by the best seen. ``alpha`` is chosen by replaying
    the beginning of the trace, as the paper does.
    """

    def __init__(self, flops: Flops, alpha: float) -> None:
        self._flops = flops
        self._alpha = alpha
        self._best = 1e-9
        self._clock = 0
        self._stay = 1.0

    def score(self, entry: Entry, now: float) -> Score:  # noqa: ARG002
        self._clock = max(self._clock, entry.node.last_use)
        efficiency = self._flops(entry.resume, entry.end) / max(1, entry.n_bytes)
        self._best = max(self._best, efficiency)
        return Score(entry.node.last_use / self._stay + self._alpha * efficiency / self._best)

    def evicted(self, entry: Entry, score: float) -> None:  # noqa: ARG002
        self._stay += (self._clock - entry.node.last_use - self._stay) * 0.01
        self._stay = max(1.0, self._stay)


class Clairvoyant(LeastRecentlyUsed):
    """Farthest next use first. Knows the trace; an upper reference, though not the optimum for unequal sizes."""

    def __init__(self, trace: list[TraceRequest], number: Callable[[], int]) -> None:
        self._number = number
        """Of the request that is being served."""
        self._uses: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self._block_of: dict[tuple[int, int], int] = {}
        for index, request in enumerate(trace):
            ids = request.blocks()
            for i, block in enumerate(ids):
                self._uses[block].append((index, ids[i + 1] if i + 1 < len(ids) else -1))
        for block in self._uses:
            tokens = expand((block,))
            self._block_of[int(tokens[0]), int(tokens[-1])] = block

    def score(self, entry: Entry, now: float) -> Score:  # noqa: ARG002
        return Score(-self._next_use(entry.node))

    def _next_use(self, node: Node) -> float:
        """The next request that would resume at the node's end, or below it where nothing is left there."""
        tokens = node.tokens
        if len(tokens) < BLOCK:
            return math.inf
        children = {self._block_of.get((first, int(child.tokens[BLOCK - 1]))) for first, child in node.children.items()}
        uses = self._uses[self._block_of[int(tokens[-BLOCK]), int(tokens[-1])]]
        for number, following in uses[bisect_right(uses, (self._number(), math.inf)) :][:20]:
            if following not in children:
                return number
        return math.inf
