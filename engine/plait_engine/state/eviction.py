"""Placeholder in this branch: least recently used leaf first."""

from plait_engine.state.ledger import Demand
from plait_engine.state.tree import Node, PrefixTree


class Evictor:
    def __init__(self, tree: PrefixTree, policy: object = None) -> None:
        self.tree = tree

    def make_room(self, demand: Demand) -> bool:
        while not self.tree.ledger.can_take(demand):
            victim = min((n for n in self.tree.nodes() if self._free(n)), key=lambda n: n.last_use, default=None)
            if victim is None:
                return False
            if victim.children:
                self.tree.drop_checkpoint(victim)
            else:
                self.tree.drop_leaf(victim)
        return True

    @staticmethod
    def _free(node: Node) -> bool:
        if node.pinned:
            return False
        if node.children:
            return node.checkpoint is not None and not node.checkpoint.leases
        return not node.leases
