"""The prefix tree: what has been computed, by token content and namespace.

A node (``state/node.py``) is a run of tokens with the full-attention pages of exactly those. A checkpoint hangs at a
node's end. The tree never holds what is not committed, and never writes.
"""

import time
from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np

from plait_engine.state.checkpoint import Checkpoint, Stage
from plait_engine.state.lease import Lease
from plait_engine.state.ledger import Ledger, Units
from plait_engine.state.node import TOKEN_BYTES, Node, Tokens, common_prefix, page_span, pages_of
from plait_engine.state.pools import StateBug
from plait_engine.state.resume_point import NO_MATCH, Match, ResumePoint
from plait_engine.state.spec import Granule, GroupId, Position


class TreeObserver(Protocol):
    """Told what happens to nodes, so that it can keep an order over them. Must not call the tree back."""

    def changed(self, node: Node) -> None:
        """``node`` is new, was used, or its children, checkpoint or leases are others now."""

    def removed(self, node: Node) -> None:
        """``node`` is out of the tree."""


class PrefixTree:
    """Owns its nodes and their references in the ledger. ``clock`` counts uses, ``now`` gives seconds, for policies."""

    def __init__(self, ledger: Ledger, now: Callable[[], float] = time.monotonic) -> None:
        self.ledger = ledger
        self.clock = 0
        self.now = now
        self.observer: TreeObserver | None = None
        self.open_leases = 0
        self._roots: dict[str, Node] = {}
        self._full = tuple(g for g in ledger.groups if g.full)
        self.needs_checkpoint = len(self._full) < len(ledger.groups)
        """Whether any group can go on only from a checkpoint."""

    # Look up ---------------------------------------------------------------------------------------------------------

    def match(self, namespace: str, tokens: Tokens) -> Match:
        """What is known of ``tokens``. The last token is never skipped: something must be computed to go on from."""
        root = self._roots.get(namespace)
        if root is None:
            return NO_MATCH
        tokens = np.ascontiguousarray(tokens, np.int32)
        path, known = self._walk(root, tokens)
        usable = min(known, len(tokens) - 1)
        points: list[ResumePoint] = []
        for node in reversed(path):
            if self.needs_checkpoint:
                if node.checkpoint is not None and node.end <= usable:
                    points.append(ResumePoint(Position(node.end), node, node.checkpoint))
            elif node.start < usable:
                points.append(ResumePoint(Position(min(node.end, usable)), node, None))
        return Match(known, tuple(points), bool(path) and known < path[-1].end)

    def known_path(self, namespace: str, tokens: Tokens) -> list[Node]:
        """Nodes that agree with ``tokens`` in at least one token, from the root's child down."""
        root = self._roots.get(namespace)
        return [] if root is None else self._walk(root, np.ascontiguousarray(tokens, np.int32))[0]

    def _walk(self, root: Node, tokens: Tokens) -> tuple[list[Node], int]:
        """Nodes that agree with ``tokens`` in at least one token, and in how many all of them together do."""
        path: list[Node] = []
        raw, firsts = tokens.tobytes(), tokens.data
        node, known = root, 0
        while known < len(firsts) and (child := node.children.get(firsts[known])) is not None:
            path.append(child)
            if not raw.startswith(child.raw, known * TOKEN_BYTES):
                return path, known + common_prefix(child.tokens, tokens[known:])
            known += len(child.raw) // TOKEN_BYTES
            node = child
        return path, known

    def pages_up_to(self, point: ResumePoint, group: GroupId) -> list[Granule]:
        """Pages of the first ``point.position`` tokens by page number; where two nodes name one, the deeper counts."""
        span = page_span(self.ledger.groups[group])
        pages: list[Granule] = []
        for node in point.node.path():
            del pages[node.start // span :]
            pages.extend(node.pages[group])
        del pages[-(-point.position // span) :]
        return pages

    # Insert ----------------------------------------------------------------------------------------------------------

    def insert(
        self, namespace: str, tokens: Tokens, pages: dict[GroupId, list[Granule]], checkpoint: Checkpoint | None
    ) -> Node:
        """Make ``tokens`` known. ``pages`` are the writer's own, by page number from 0; what the tree has already is
        not taken again. ``checkpoint`` is published and lies at the end of ``tokens``; where the tree has one already,
        the new one is given back. Returns the node that ends there.
        """
        if checkpoint is not None and (checkpoint.stage is not Stage.PUBLISHED or checkpoint.position != len(tokens)):
            raise StateBug(f"a {checkpoint.stage} checkpoint at {checkpoint.position} is inserted at {len(tokens)}")
        if not len(tokens):
            raise StateBug("nothing is inserted: a node has at least one token")
        tokens = np.ascontiguousarray(tokens, np.int32)
        root = self._roots.get(namespace)
        if root is None:
            root = self._roots[namespace] = Node(None, 0, b"", namespace=namespace)
        path, known = self._walk(root, tokens)
        node = path[-1] if path else root
        if known < node.end:
            node = self._split(node, known)
        if known < len(tokens):
            node = self._grow(node, tokens, pages)
        self._attach(node, checkpoint)
        self.touch(node)
        return node

    def _split(self, node: Node, at: int) -> Node:
        """Cut a node in two; returns the upper part. A page across the cut belongs to both."""
        assert node.parent is not None
        cut = (at - node.start) * TOKEN_BYTES
        upper = Node(node.parent, node.start, node.raw[:cut], namespace=node.namespace)
        upper.last_use, upper.used_at, upper.hits = node.last_use, node.used_at, node.hits
        upper.leases, upper.pins = node.leases, node.pins
        for group, pages in node.pages.items():
            span = page_span(self.ledger.groups[group])
            skipped = node.start // span
            upper.pages[group] = pages[: -(-at // span) - skipped]
            node.pages[group] = pages[at // span - skipped :]
            births = node.births[group]
            upper.births[group] = births[: -(-at // span) - skipped]
            node.births[group] = births[at // span - skipped :]
            if at % span and self.ledger.births(group, upper.pages[group][-1:]) == upper.births[group][-1:]:
                self.ledger.share(group, upper.pages[group][-1:])
        node.parent.children[node.first] = upper
        node.parent, node.raw, node.start = upper, node.raw[cut:], at
        upper.children[node.first] = node
        self._changed(node)
        return upper

    def _grow(self, parent: Node, tokens: Tokens, pages: dict[GroupId, list[Granule]]) -> Node:
        node = Node(parent, parent.end, tokens[parent.end :].tobytes(), namespace=parent.namespace)
        for group in self._full:
            span = page_span(group)
            first, last = node.start // span, -(-node.end // span)
            if len(pages[group.id]) < last:
                raise StateBug(f"{node.end} tokens are inserted with {len(pages[group.id])} pages of {last}")
            node.pages[group.id] = pages[group.id][first:last]
        for group in self._full:
            self.ledger.share(group.id, node.pages[group.id])
            node.births[group.id] = self.ledger.births(group.id, node.pages[group.id])
        parent.children[node.first] = node
        return node

    def _attach(self, node: Node, checkpoint: Checkpoint | None) -> None:
        if checkpoint is None:
            return
        known = node.checkpoint
        if known is not None and known.stage is Stage.OFFLOADED and not known.leases:
            known.discard(self.ledger)  # The same, only further away.
            node.checkpoint = None
        if node.checkpoint is None:
            node.checkpoint = checkpoint
            checkpoint.births = {group: self.ledger.births(group, units) for group, units in checkpoint.owned().items()}
        else:
            checkpoint.discard(self.ledger)

    # Use, leases, removal --------------------------------------------------------------------------------------------

    def touch(self, node: Node) -> None:
        """A use of ``node``, and so of all above it."""
        self.clock += 1
        now, observer, used = self.now(), self.observer, node
        while used.parent is not None:
            used.last_use, used.used_at = self.clock, now
            if observer is not None:
                observer.changed(used)
            used = used.parent

    def lease(self, point: ResumePoint) -> Lease:
        """Hold every page and the checkpoint of a resume point, all at once, until the lease is given back."""
        self._hold(point, 1)
        self.open_leases += 1
        point.node.hits += 1
        self.touch(point.node)
        return Lease(self, point)

    def end_lease(self, point: ResumePoint) -> None:
        self.open_leases -= 1
        self._hold(point, -1)

    def pin(self, point: ResumePoint) -> None:
        """Keep a resume point until it is unpinned, like a lease of its own."""
        if not point.node.pinned:
            point.node.pinned = True
            self._hold(point, 1, pins=1)

    def unpin(self, point: ResumePoint) -> None:
        if point.node.pinned:
            point.node.pinned = False
            self._hold(point, -1, pins=-1)

    def _hold(self, point: ResumePoint, count: int, pins: int = 0) -> None:
        if point.checkpoint is not None:
            point.checkpoint.leases += count
        for node in point.node.path():
            node.leases += count
            node.pins += pins
            self._changed(node)

    def drop_checkpoint(self, node: Node) -> None:
        """Forget the checkpoint at a node's end, and the tokens that nothing can resume from any more."""
        if node.checkpoint is not None:
            node.checkpoint.discard(self.ledger)
            node.checkpoint = None
            self._changed(node)
        if self.needs_checkpoint:
            self.prune(node)

    def cut(self, node: Node) -> list[Checkpoint]:
        """Forget ``node`` and all behind it, which is broken. What a lease holds stays until somebody cuts again, and
        has no pages any more when it is gone. Returns the checkpoints that hung there: they are the caller's now.
        """
        if node.parent is None or not node.pages:
            return []
        loose = self._cut(node)
        if self.needs_checkpoint:
            self.prune(node.parent)
        return loose

    def _cut(self, node: Node) -> list[Checkpoint]:
        loose = [checkpoint for child in [*node.children.values()] for checkpoint in self._cut(child)]
        self.unpin(ResumePoint(Position(node.end), node, node.checkpoint))
        if node.checkpoint is not None:
            loose.append(node.checkpoint)
            node.checkpoint = None
            self._changed(node)
        if not node.children and not node.leases:
            self._remove(node)
        return loose

    def detach_checkpoint(self, node: Node) -> None:
        """Like ``drop_checkpoint``, but the checkpoint is the caller's from now on, and no pin's."""
        self.unpin(ResumePoint(Position(node.end), node, node.checkpoint))
        node.checkpoint = None
        self._changed(node)
        if self.needs_checkpoint:
            self.prune(node)

    def prune(self, node: Node) -> None:
        """Remove ``node`` and its ancestors as far up as they have neither children nor a way to resume from them."""
        while node.parent is not None and not node.children and not node.leases and not node.pinned:
            if node.checkpoint is not None:
                return
            self._remove(node)
            node = node.parent

    def drop_leaf(self, node: Node) -> None:
        """Forget a node without children, with all that it holds, and what becomes useless above it."""
        if node.children or node.leases or node.pinned or node.parent is None:
            raise StateBug(f"node [{node.start}, {node.end}) is dropped but has children or leases")
        parent = node.parent
        if node.checkpoint is not None:
            node.checkpoint.discard(self.ledger)
            node.checkpoint = None
        self._remove(node)
        if self.needs_checkpoint:
            self.prune(parent)

    def _remove(self, node: Node) -> None:
        assert node.parent is not None
        for group, pages in node.pages.items():
            self.ledger.give_back_own(group, pages, node.births[group])
        node.pages, node.births = {}, {}
        parent = node.parent
        del parent.children[node.first]
        if self.observer is not None:
            self.observer.removed(node)
        if parent.parent is not None:
            self._changed(parent)
        elif not parent.children:
            del self._roots[parent.namespace]

    def _changed(self, node: Node) -> None:
        if self.observer is not None:
            self.observer.changed(node)

    # Books -----------------------------------------------------------------------------------------------------------

    def nodes(self) -> Iterator[Node]:
        for root in self._roots.values():
            for child in root.children.values():
                yield from child.subtree()

    def owned(self) -> Iterator[Units]:
        """What the tree holds references on, node by node, for ``Ledger.check``."""
        for node in self.nodes():
            yield node.pages
            if node.checkpoint is not None:
                yield node.checkpoint.owned()

    def check(self) -> None:
        """Nodes adjoin, pages cover their tokens, checkpoints lie at their nodes' ends."""
        for node in self.nodes():
            assert node.parent is not None
            if node.start != node.parent.end or not node.raw:
                raise StateBug(f"node [{node.start}, {node.end}) does not follow its parent")
            for group in self._full:
                pages = pages_of(node, group)
                if len(node.pages[group.id]) != pages:
                    raise StateBug(f"node [{node.start}, {node.end}) has {len(node.pages[group.id])} pages of {pages}")
            if node.checkpoint is not None and node.checkpoint.position != node.end:
                raise StateBug(f"a checkpoint at {node.checkpoint.position} hangs at {node.end}")
