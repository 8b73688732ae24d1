"""What a recorded step was made with. A replay reads and writes the same addresses by the same kernels, whatever became
of them: with anything else it would answer from memory that is no longer what it was."""

from dataclasses import dataclass

from plait_engine.models.base import StateLayout
from plait_engine.runner.shape import Shape
from plait_kernels.segments import Segments
from plait_kernels.select import Kernels


@dataclass(frozen=True)
class Layout:
    """Equal to another one if a recording made with the one may be replayed with the other."""

    shape: Shape
    desk: tuple[int, ...]
    """Addresses of the tensors that are read."""
    states: StateLayout
    """That the model's layers are bound to."""
    kernels: Kernels
    generation: int
    """Of the kernels, which may change while the object stays the same."""


def shape_in(segments: Segments) -> Shape:
    """The shape that a padded step really has."""
    pieces = segments.sequences - segments.decodes
    return Shape(segments.decodes, pieces, segments.tokens - segments.decodes)
