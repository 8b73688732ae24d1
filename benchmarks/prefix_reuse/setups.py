"""The caches that are compared: what they evict, where they keep checkpoints, how they divide memory."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.prefix_reuse.geometry import Geometry
from benchmarks.prefix_reuse.policies import Clairvoyant, FlopAware, GreedyDual
from benchmarks.prefix_reuse.simulation import MakeEvictor, Simulation, Totals
from benchmarks.prefix_reuse.traces import BLOCK, TraceRequest
from plait_engine.state.eviction import EvictionPolicy, Evictor, LearnedEvictor, LeastRecentlyUsed
from plait_engine.state.tree import PrefixTree

ALPHAS = (0.0, 0.25, 1.0, 4.0)


@dataclass(frozen=True)
class Setup:
    name: str
    text: str
    make: Callable[[Geometry, list[TraceRequest]], MakeEvictor]
    block_aligned: bool = False
    branches: bool = True
    shares: tuple[float, float] | None = None


def run(
    setup: Setup,
    geometry: Geometry,
    budget_bytes: float,
    trace: list[TraceRequest],
    page_size: int = BLOCK,
    grain: int = 1,
) -> Totals:
    """``budget_bytes`` may be infinite. ``grain``: prompts are known in multiples of so many tokens only."""
    grain = geometry.block_tokens if setup.block_aligned else grain
    if setup.block_aligned:
        geometry = geometry.padded_to_blocks()
        page_size = max(page_size, grain)
    simulation = Simulation(
        geometry,
        min(budget_bytes, _everything(geometry, trace)),
        max((r.prompt for r in trace), default=1),
        setup.make(geometry, trace),
        page_size,
        grain,
        setup.branches,
        None if math.isinf(budget_bytes) else setup.shares,
    )
    return simulation.run(trace)


def _everything(geometry: Geometry, trace: list[TraceRequest]) -> float:
    distinct = len({block for request in trace for block in request.blocks()})
    block = trace[0].block if trace else BLOCK
    page = geometry.token_bytes * max(block, geometry.block_tokens if block == BLOCK else 0)
    return 1.3 * (distinct + len(trace)) * page + 2.5 * len(trace) * geometry.checkpoint_bytes


def _plain(policy: Callable[[], EvictionPolicy]) -> Callable[[Geometry, list[TraceRequest]], MakeEvictor]:
    return lambda _geometry, _trace: lambda tree, simulation: Evictor(tree, policy(), simulation.geometry.seconds)


def _learned(_geometry: Geometry, _trace: list[TraceRequest]) -> MakeEvictor:
    return lambda tree, simulation: LearnedEvictor(tree, simulation.geometry.seconds, count=simulation.totals.count)


def _flop_aware(alpha: float) -> Callable[[Geometry, list[TraceRequest]], MakeEvictor]:
    return lambda geometry, _trace: lambda tree, _simulation: Evictor(tree, FlopAware(geometry.flops, alpha))


def _clairvoyant(_geometry: Geometry, trace: list[TraceRequest]) -> MakeEvictor:
    def make(tree: PrefixTree, simulation: Simulation) -> Evictor:
        policy = Clairvoyant(trace, lambda: simulation.number)
        return Evictor(tree, policy)

    return make


SETUPS = {
    s.name: s
    for s in (
        Setup("blocks", "block-aligned, one pool, LRU (vLLM-like)", _plain(LeastRecentlyUsed), block_aligned=True),
        Setup(
            "split",
            "end of prompt only, fixed 47/53 split, LRU (SGLang-like)",
            _plain(LeastRecentlyUsed),
            branches=False,
            shares=(0.47, 0.53),
        ),
        Setup("flops", "one arena, FLOP-aware (Marconi's rule)", _flop_aware(1.0)),
        Setup("lru", "one arena, LRU", _plain(LeastRecentlyUsed)),
        Setup("gdsf", "one arena, GreedyDual-Size-Frequency", _plain(GreedyDual)),
        Setup("plait", "one arena, expected reuse (ours)", _learned),
        Setup("clairvoyant", "one arena, farthest next use (knows the trace)", _clairvoyant),
    )
}


def tuned(setup: Setup, geometry: Geometry, budget_bytes: float, trace: list[TraceRequest]) -> Setup:
    """The FLOP-aware rule chooses its alpha on the first tenth of the trace, as its paper does."""
    if setup.name != "flops":
        return setup
    head = trace[: max(1, len(trace) // 10)]
    tries = [Setup(setup.name, setup.text, _flop_aware(alpha)) for alpha in ALPHAS]
    return max(tries, key=lambda s: run(s, geometry, budget_bytes, head).skipped)
