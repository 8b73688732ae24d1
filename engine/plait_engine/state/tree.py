"""The prefix tree: what has been computed, by token content and namespace.

A node is a run of tokens ``[start, end)`` behind its parent's. It holds, for each full-attention group, the pages of
exactly those tokens. A border may lie inside a page; then both sides name a page that is filled back to its start, and
the deeper one counts::

    tokens      0 . . . . . . . 8 . . 10                      page size 8
    parent     [--- page 0 ----][ p1 ]
    child                             10 . . . . . . . 19
                               [ p1' : 8 9 | 10 .. 15 ][ page 2 ..]   p1' is p1 itself, or a copy of it with more behind

A checkpoint hangs at a node's end. The tree never holds what is not committed, and never writes.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from plait_engine.state.checkpoint import Checkpoint, Stage
from plait_engine.state.ledger import Ledger, Units
from plait_engine.state.pools import StateBug
from plait_engine.state.spec import Granule, GroupId, Position

Tokens = NDArray[np.int32]


@dataclass(eq=False)
class Node:
    """``pages[group]`` are those of page numbers ``start // page_size`` up to the one that holds token ``end - 1``."""

    parent: "Node | None"
    start: int
    tokens: Tokens
    pages: dict[GroupId, list[Granule]] = field(default_factory=dict)
    children: dict[int, "Node"] = field(default_factory=dict)
    checkpoint: Checkpoint | None = None
    leases: int = 0
    pinned: bool = False
    hits: int = 0
    last_use: int = 0
    namespace: str = ""

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)

    @property
    def is_root(self) -> bool:
        return self.parent is None

    def path(self) -> list["Node"]:
        """From the root's child down to this node."""
        nodes: list[Node] = []
        node: Node | None = self
        while node is not None and node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]


@dataclass(frozen=True)
class ResumePoint:
    """A position from which every group can go on, and the node that it lies in. ``checkpoint`` None: none needed."""

    position: Position
    node: Node
    checkpoint: Checkpoint | None


@dataclass(frozen=True)
class Match:
    """``known`` tokens of the prompt are in the tree; ``points`` are where one could resume, best first."""

    known: int
    points: tuple[ResumePoint, ...]

    @property
    def best(self) -> ResumePoint | None:
        return self.points[0] if self.points else None


NO_MATCH = Match(0, ())


class PrefixTree:
    """Owns its nodes and their references in the ledger. ``clock`` counts uses, for policies."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.clock = 0
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
        path, known = self._walk(root, tokens)
        usable = min(known, len(tokens) - 1)
        points: list[ResumePoint] = []
        for node in reversed(path):
            if self.needs_checkpoint:
                if node.checkpoint is not None and node.end <= usable:
                    points.append(ResumePoint(Position(node.end), node, node.checkpoint))
            elif node.start < usable:
                points.append(ResumePoint(Position(min(node.end, usable)), node, None))
        return Match(known, tuple(points))

    def _walk(self, root: Node, tokens: Tokens) -> tuple[list[Node], int]:
        """Nodes that agree with ``tokens`` in at least one token, and in how many all of them together do."""
        path: list[Node] = []
        node, known = root, 0
        while known < len(tokens) and (child := node.children.get(int(tokens[known]))) is not None:
            same = common_prefix(child.tokens, tokens[known:])
            path.append(child)
            known += same
            if same < len(child.tokens):
                break
            node = child
        return path, known

    def pages_up_to(self, point: ResumePoint, group: GroupId) -> list[Granule]:
        """Pages of the first ``point.position`` tokens by page number; where two nodes name one, the deeper counts."""
        size = self.ledger.groups[group].page_size
        pages: list[Granule] = []
        for node in point.node.path():
            del pages[node.start // size :]
            pages.extend(node.pages[group])
        del pages[-(-point.position // size) :]
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
        root = self._roots.setdefault(namespace, Node(None, 0, np.empty(0, np.int32), namespace=namespace))
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
        upper = Node(node.parent, node.start, node.tokens[: at - node.start], namespace=node.namespace)
        upper.last_use, upper.leases, upper.hits = node.last_use, node.leases, node.hits
        for group, pages in node.pages.items():
            size = self.ledger.groups[group].page_size
            skipped = node.start // size
            upper.pages[group] = pages[: -(-at // size) - skipped]
            node.pages[group] = pages[at // size - skipped :]
            if at % size:
                self.ledger.share(group, upper.pages[group][-1:])
        node.parent.children[int(node.tokens[0])] = upper
        node.parent, node.tokens, node.start = upper, node.tokens[at - node.start :], at
        upper.children[int(node.tokens[0])] = node
        return upper

    def _grow(self, parent: Node, tokens: Tokens, pages: dict[GroupId, list[Granule]]) -> Node:
        node = Node(parent, parent.end, tokens[parent.end :].copy(), namespace=parent.namespace)
        for group in self._full:
            first, last = node.start // group.page_size, -(-node.end // group.page_size)
            node.pages[group.id] = pages[group.id][first:last]
            self.ledger.share(group.id, node.pages[group.id])
        parent.children[int(node.tokens[0])] = node
        return node

    def _attach(self, node: Node, checkpoint: Checkpoint | None) -> None:
        if checkpoint is None:
            return
        if node.checkpoint is None:
            node.checkpoint = checkpoint
        else:
            checkpoint.discard(self.ledger)

    # Use, leases, removal --------------------------------------------------------------------------------------------

    def touch(self, node: Node) -> None:
        """A use of ``node``, and so of all above it."""
        self.clock += 1
        for used in node.path():
            used.last_use = self.clock

    def lease(self, point: ResumePoint) -> "Lease":
        """Hold every page and the checkpoint of a resume point, all at once, until the lease is given back."""
        for node in point.node.path():
            node.leases += 1
        if point.checkpoint is not None:
            point.checkpoint.leases += 1
        point.node.hits += 1
        self.touch(point.node)
        return Lease(self, point)

    def drop_checkpoint(self, node: Node) -> None:
        """Forget the checkpoint at a node's end, and the tokens that nothing can resume from any more."""
        if node.checkpoint is not None:
            node.checkpoint.discard(self.ledger)
            node.checkpoint = None
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
        if node.children or node.leases or node.parent is None:
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
            self.ledger.give_back(group, pages)
        node.pages = {}
        del node.parent.children[int(node.tokens[0])]

    # Books -----------------------------------------------------------------------------------------------------------

    def nodes(self) -> Iterator[Node]:
        stack = [child for root in self._roots.values() for child in root.children.values()]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

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
            if node.start != node.parent.end or not len(node.tokens):
                raise StateBug(f"node [{node.start}, {node.end}) does not follow its parent")
            for group in self._full:
                pages = -(-node.end // group.page_size) - node.start // group.page_size
                if len(node.pages[group.id]) != pages:
                    raise StateBug(f"node [{node.start}, {node.end}) has {len(node.pages[group.id])} pages of {pages}")
            if node.checkpoint is not None and node.checkpoint.position != node.end:
                raise StateBug(f"a checkpoint at {node.checkpoint.position} hangs at {node.end}")


class Lease:
    """References on all of a resume point. Given back exactly once; giving back twice is a bug."""

    def __init__(self, tree: PrefixTree, point: ResumePoint) -> None:
        self.point = point
        self._tree = tree
        self._open = True

    def give_back(self) -> None:
        if not self._open:
            raise StateBug("a lease is given back twice")
        self._open = False
        for node in self.point.node.path():
            node.leases -= 1
        if self.point.checkpoint is not None:
            self.point.checkpoint.leases -= 1


def common_prefix(a: Tokens, b: Tokens) -> int:
    """In how many first tokens two runs agree."""
    n = min(len(a), len(b))
    differ = a[:n] != b[:n]
    first = int(differ.argmax()) if n else 0
    return first if n and differ[first] else n
