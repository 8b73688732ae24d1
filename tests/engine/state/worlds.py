"""A writer of prefixes for tests: pages whose contents are remembered, so that a wrong page is seen as wrong tokens."""

from dataclasses import dataclass, field
from unittest.mock import patch

import numpy as np
import torch

from plait_engine.state import pools
from plait_engine.state.arena import Arena
from plait_engine.state.checkpoint import Checkpoint, StepReceipt
from plait_engine.state.ledger import Ledger
from plait_engine.state.node import Node, Tokens
from plait_engine.state.pools import choose_slab_bytes
from plait_engine.state.resume_point import ResumePoint
from plait_engine.state.spec import Granule, GroupId, PagedSpec, Position, SlotSpec, StateGroup, TensorSpec, group_specs
from plait_engine.state.tree import PrefixTree

FULL = PagedSpec("full_attention", (TensorSpec("k", (16,), torch.bfloat16), TensorSpec("v", (16,), torch.bfloat16)))
MAMBA = SlotSpec("mamba2", (TensorSpec("ssm", (8, 24), torch.float32),))
PAGE = 4
SLAB_BYTES = 1536
"""Six pages or two rows of the groups below."""
HYBRID = group_specs(((FULL,), (MAMBA,), (MAMBA,)), page_size=PAGE)
ATTENTION = group_specs(((FULL,),), page_size=PAGE)
PAGES, SLOT = GroupId(0), GroupId(1)


def tokens_of(*values: int) -> Tokens:
    return np.array(values, np.int32)


def run_of(start: int, count: int) -> Tokens:
    return np.arange(start, start + count, dtype=np.int32)


def make_ledger(slabs: int = 400, groups: tuple[StateGroup, ...] = HYBRID) -> Ledger:
    with patch.object(pools, "SLAB_TARGET_BYTES", SLAB_BYTES):
        return Ledger(Arena(slabs * choose_slab_bytes(groups), torch.device("cpu")), groups)


@dataclass
class World:
    """A tree, and what its pages hold: for each page and offset, the prefix that was computed there."""

    groups: tuple[StateGroup, ...] = HYBRID
    slabs: int = 400
    page: int = PAGE
    now: float = 0.0
    track: bool = True
    contents: dict[tuple[Granule, int], tuple[int, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ledger = make_ledger(self.slabs, self.groups)
        self.tree = PrefixTree(self.ledger, now=lambda: self.now)

    def checkpoint(self, position: int) -> Checkpoint | None:
        """A published one, or None where the model needs none."""
        if len(self.groups) == 1:
            return None
        rows = self.ledger.take({SLOT: self.groups[SLOT].units_per_slot})
        assert rows is not None
        checkpoint = Checkpoint(Position(position), "test", rows)
        checkpoint.publish(StepReceipt(1), None)
        return checkpoint

    def write(self, tokens: Tokens, namespace: str = "", keep: bool = True, stops: tuple[int, ...] = ()) -> Node:
        """Run a prompt: resume where possible, compute the rest into own pages, insert at ``stops`` and at the end."""
        point = self.tree.match(namespace, tokens).best
        lease = None if point is None else self.tree.lease(point)
        start = 0 if point is None else point.position
        shared = [] if point is None else self.tree.pages_up_to(point, PAGES)
        whole = start // self.page
        units = self.ledger.take({PAGES: -(-len(tokens) // self.page) - whole})
        assert units is not None
        own = units[PAGES]
        pages = shared[:whole] + own
        for position in range(whole * self.page, start if self.track else 0):
            self.contents[own[0], position % self.page] = self.contents[shared[whole], position % self.page]
        node: Node | None = None
        for stop in (*stops, len(tokens)):
            for position in range(start, stop if self.track else 0):
                prefix = tuple(tokens[: position + 1].tolist())
                self.contents[pages[position // self.page], position % self.page] = prefix
            checkpoint = self.checkpoint(stop) if keep or stop < len(tokens) else None
            node = self.tree.insert(namespace, tokens[:stop], {PAGES: pages}, checkpoint)
            start = max(start, stop)
        self.ledger.give_back(PAGES, own)
        if lease is not None:
            lease.give_back()
        assert node is not None
        return node

    def read(self, point: ResumePoint, tokens: Tokens) -> None:
        """Every token up to the resume point is in the page where it should be."""
        pages = self.tree.pages_up_to(point, PAGES)
        assert len(pages) == -(-point.position // self.page)
        for position in range(point.position):
            held = self.contents[pages[position // self.page], position % self.page]
            assert held == tuple(tokens[: position + 1].tolist())

    def check(self) -> None:
        self.tree.check()
        self.ledger.check(self.tree.owned())
