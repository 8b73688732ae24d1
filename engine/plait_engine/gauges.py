"""Who has what of the arena, at this moment."""

from collections import defaultdict
from collections.abc import Iterable

from plait_engine.state.checkpoint import Stage
from plait_engine.state.ledger import Ledger, Units
from plait_engine.state.prefix_cache import PrefixCache

Gauges = dict[str, dict[str, float]]


def arena_gauges(cache: PrefixCache, running: Iterable[Units]) -> Gauges:
    """Running: what sequences and padding hold, also where the tree holds it too. Cached: what only the tree holds."""
    ledger = cache.ledger
    units = {True: defaultdict[str, float](float), False: defaultdict[str, float](float)}
    n_bytes = defaultdict[str, float](float)
    held = _held(ledger, running)
    for group, pool in ledger.pools.items():
        counts = {"running": len(held[group]), "cached": len(pool.taken) - len(held[group]), "free": pool.available}
        for use, count in counts.items():
            units[pool.group.paged][f"group={pool.group.spec.kind},use={use}"] += count
            if use != "free":
                n_bytes[f"use={use}"] += count * pool.group.unit_bytes
    total = ledger.arena.n_bytes
    used = sum(n_bytes.values())
    return {
        "plait_pages": dict(units[True]),
        "plait_slots": dict(units[False]),
        "plait_arena_bytes": {**n_bytes, "use=free": total - used},
        "plait_cache_utilization_ratio": {"": used / total},
        "plait_checkpoints": _checkpoints(cache),
    }


def _checkpoints(cache: PrefixCache) -> dict[str, float]:
    held = [node.checkpoint for node in cache.tree.nodes() if node.checkpoint is not None]
    away = sum(checkpoint.stage is Stage.OFFLOADED for checkpoint in held)
    counts = {"tier=arena": float(len(held) - away)}
    return counts if cache.tier is None else {**counts, f"tier={cache.tier.name}": float(away)}


def _held(ledger: Ledger, running: Iterable[Units]) -> dict[int, set[int]]:
    held: dict[int, set[int]] = {group: set(units) for group, units in ledger.reserved.items()}
    for owned in running:
        for group, units in owned.items():
            held[group].update(units)
    return held
