"""A node of the prefix tree: a run of tokens behind its parent's, and the pages that hold exactly those.

A border may lie inside a page; then both sides name a page that is filled back to its start. The deeper one counts::

    tokens      0 . . . . . . . 8 . . 10                      page size 8
    parent     [--- page 0 ----][ p1 ]
    child                             10 . . . . . . . 19
                               [ p1' : 8 9 | 10 .. 15 ][ page 2 ..]   p1' is p1 itself, or a copy of it with more behind
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from plait_engine.state.checkpoint import Checkpoint
from plait_engine.state.spec import Granule, GroupId, PagedSpec, StateGroup

Tokens = NDArray[np.int32]
TOKEN_BYTES = 4


@dataclass(eq=False)
class Node:
    """``pages[group]`` are those of page numbers ``start // span`` up to the one that holds token ``end - 1``, where
    ``span`` is how many tokens a page of the group stands for. ``births`` are those of the pages, so that one that was
    freed and taken by others is not mistaken for ours. ``raw`` are the tokens as int32 bytes.
    """

    parent: "Node | None"
    start: int
    raw: bytes
    pages: dict[GroupId, list[Granule]] = field(default_factory=dict)
    births: dict[GroupId, list[int | None]] = field(default_factory=dict)
    children: dict[int, "Node"] = field(default_factory=dict)
    checkpoint: Checkpoint | None = None
    leases: int = 0
    pins: int = 0
    """Of these, how many are pins: nobody has the addresses because of them, so what only they hold may be moved."""
    pinned: bool = False
    """Whether one of the pins is of this node itself, and not of one below."""
    hits: int = 0
    last_use: int = 0
    used_at: float = 0.0
    """Seconds on the tree's clock."""
    namespace: str = ""

    @property
    def tokens(self) -> Tokens:
        return np.frombuffer(self.raw, np.int32)

    @property
    def first(self) -> int:
        """The token by which the parent knows this node."""
        return int.from_bytes(self.raw[:TOKEN_BYTES], sys.byteorder, signed=True)

    @property
    def end(self) -> int:
        return self.start + len(self.raw) // TOKEN_BYTES

    @property
    def is_root(self) -> bool:
        return self.parent is None

    @property
    def is_gone(self) -> bool:
        """Whether it is out of the tree."""
        return self.parent is not None and self.parent.children.get(self.first) is not self

    def path(self) -> list["Node"]:
        """From the root's child down to this node."""
        nodes: list[Node] = []
        node: Node | None = self
        while node is not None and node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]

    def subtree(self) -> Iterator["Node"]:
        """This node and all below it."""
        stack = [self]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())


def page_span(group: StateGroup) -> int:
    """Tokens that one page of the group stands for."""
    return group.page_size * (group.spec.ratio if isinstance(group.spec, PagedSpec) else 1)


def pages_of(node: Node, group: StateGroup) -> int:
    """Pages that a node needs of a group, those that it has in part included."""
    span = page_span(group)
    return -(-node.end // span) - node.start // span


def common_prefix(a: Tokens, b: Tokens) -> int:
    """In how many first tokens two runs agree."""
    n = min(len(a), len(b))
    differ = a[:n] != b[:n]
    first = int(differ.argmax()) if n else 0
    return first if n and differ[first] else n
