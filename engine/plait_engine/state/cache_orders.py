"""What tenants ask of the cache itself: what is there, take off a pin, forget the rest. Each reaches only its own."""

from collections.abc import Iterator

from plait_engine.cache_order import CacheAnswer, CacheOrder, CacheRefusal, CacheVerb
from plait_engine.state.node import Node
from plait_engine.state.prefix_cache import PrefixCache


def obey(order: CacheOrder, cache: PrefixCache) -> CacheAnswer:
    refusal, dropped = None, 0
    if order.verb is CacheVerb.UNPIN:
        refusal = _unpin(order, cache)
    elif order.verb is CacheVerb.DROP:
        dropped = _drop(order, cache)
    return _show(order, cache, refusal, dropped)


def _unpin(order: CacheOrder, cache: PrefixCache) -> CacheRefusal | None:
    pin = cache.pins.find(order.tenant, order.pin)
    if pin is None:
        return CacheRefusal.UNKNOWN_PIN
    if pin.configured:
        return CacheRefusal.CONFIGURED
    cache.pins.remove(pin)
    return None


def _drop(order: CacheOrder, cache: PrefixCache) -> int:
    """Tokens forgotten. From the leaves up, so that what a pin or a running request holds stays with all above it."""
    before = sum(node.end - node.start for node in _nodes(order, cache))
    for node in sorted(_nodes(order, cache), key=lambda node: -node.start):
        if node.is_gone or node.leases:
            continue
        if not node.children:
            cache.tree.drop_leaf(node)
            cache.evicted("leaf", "dropped")
        elif node.checkpoint is not None and not node.checkpoint.leases:
            cache.tree.drop_checkpoint(node)
            cache.evicted("checkpoint", "dropped")
    return before - sum(node.end - node.start for node in _nodes(order, cache))


def _show(order: CacheOrder, cache: PrefixCache, refusal: CacheRefusal | None, dropped: int) -> CacheAnswer:
    units = {group.id: group.unit_bytes for group in cache.ledger.groups}
    namespaces, tokens, checkpoints, n_bytes = set[str](), 0, 0, 0
    for node in _nodes(order, cache):
        namespaces.add(node.namespace)
        tokens += node.end - node.start
        checkpoints += node.checkpoint is not None
        for owned in (node.pages, {} if node.checkpoint is None else node.checkpoint.slots):
            n_bytes += sum(len(addresses) * units[group] for group, addresses in owned.items())
    return CacheAnswer(
        namespaces=len(namespaces),
        tokens=tokens,
        checkpoints=checkpoints,
        n_bytes=n_bytes,
        pins=cache.pins.of(order.tenant),
        pinned_bytes=cache.pins.pinned_bytes(),
        pin_budget_bytes=cache.pins.budget_bytes,
        dropped_tokens=dropped,
        refusal=refusal,
    )


def _nodes(order: CacheOrder, cache: PrefixCache) -> Iterator[Node]:
    for node in cache.tree.nodes():
        tenant, _, salt = node.namespace.partition("\0")
        if tenant == order.tenant and order.cache_salt in (None, salt):
            yield node
