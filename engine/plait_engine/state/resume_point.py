"""Where a prompt could go on from: what a look-up in the prefix tree answers."""

from dataclasses import dataclass
from typing import NamedTuple

from plait_engine.state.checkpoint import Checkpoint, Stage
from plait_engine.state.node import Node
from plait_engine.state.spec import Position


class ResumePoint(NamedTuple):
    """A position from which every group can go on, and the node that it lies in. ``checkpoint`` None: none needed."""

    position: Position
    node: Node
    checkpoint: Checkpoint | None

    @property
    def away(self) -> bool:
        """Whether some of it lies in a tier."""
        return self.checkpoint is not None and self.checkpoint.stage is Stage.OFFLOADED


@dataclass(frozen=True)
class Match:
    """``known`` tokens of the prompt are in the tree; ``points`` are where one could resume, best first. ``parts``: the
    prompt leaves the known path inside of a node, so that a checkpoint at ``known`` will serve both from then on.
    """

    known: int
    points: tuple[ResumePoint, ...]
    parts: bool = False

    @property
    def best(self) -> ResumePoint | None:
        return self.points[0] if self.points else None


NO_MATCH = Match(0, ())
