"""What a layer keeps between tokens, and from where one can go on with it.

A new kind of layer means a new ``StateSpec`` here (or just new numbers in one) and nothing elsewhere: no other code
asks for a layer's kind to decide about its state.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NewType

import torch

GroupId = NewType("GroupId", int)
Granule = NewType("Granule", int)
"""Address in the arena, in units of ``GRANULE_BYTES``. Fits int32 up to 512 GiB."""
Position = NewType("Position", int)
"""Number of tokens a state has consumed."""

GRANULE_BYTES = 256
ALIGN_BYTES = 128
"""Every tensor inside a unit starts on this, so that bulk copies and vector loads work for every layer."""


def align(n_bytes: int, to: int = ALIGN_BYTES) -> int:
    return -(-n_bytes // to) * to


@dataclass(frozen=True)
class TensorSpec:
    """One named tensor of a state: of one entry (paged) or of one layer (slot)."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def n_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class PagedSpec:
    """One entry for every ``ratio`` tokens, kept in pages; with ``window`` only the last ``window`` tokens matter.

    A token attends to itself and the ``window - 1`` tokens before it.
    """

    kind: str
    tensors: tuple[TensorSpec, ...]
    window: int | None = None
    ratio: int = 1

    def needed(self, position: Position) -> range:
        """Entries that must be there so that the token at ``position`` can be computed."""
        first = 0 if self.window is None else max(0, position - self.window + 1)
        return range(first // self.ratio, position // self.ratio)

    def entries(self, tokens: int) -> int:
        return tokens // self.ratio


@dataclass(frozen=True)
class SlotSpec:
    """A state of fixed size, rewritten in place by every token: one can go on only at exactly its position."""

    kind: str
    tensors: tuple[TensorSpec, ...]


StateSpec = PagedSpec | SlotSpec


@dataclass(frozen=True)
class StateGroup:
    """The layers that share one spec, and how their state lies in a unit of the arena.

    A unit of a paged group is a page: ``page_size`` entries of all its layers. A unit of a slot group is one layer's
    row; a slot is one row for each layer.
    """

    id: GroupId
    spec: StateSpec
    layers: tuple[int, ...]
    page_size: int

    @property
    def paged(self) -> bool:
        return isinstance(self.spec, PagedSpec)

    @property
    def full(self) -> bool:
        """Whether every entry from the start on is kept, so that one can go on from any position."""
        return isinstance(self.spec, PagedSpec) and self.spec.window is None

    def pages_for(self, tokens: int) -> int:
        """Pages that hold the entries of the first ``tokens`` tokens."""
        assert isinstance(self.spec, PagedSpec)
        return -(-self.spec.entries(tokens + self.spec.ratio - 1) // self.page_size)

    @property
    def units_per_slot(self) -> int:
        return len(self.layers)

    @property
    def layer_bytes(self) -> int:
        """Bytes of one layer in one unit, alignment included."""
        return sum(align(self._tensor_bytes(t)) for t in self.spec.tensors)

    @cached_property
    def unit_bytes(self) -> int:
        n_bytes = self.layer_bytes * (len(self.layers) if self.paged else 1)
        return align(n_bytes, GRANULE_BYTES)

    def _tensor_bytes(self, tensor: TensorSpec) -> int:
        return tensor.n_bytes * (self.page_size if self.paged else 1)

    def offset_bytes(self, index: int, name: str) -> int:
        """Where tensor ``name`` of the group's ``index``-th layer begins in a unit."""
        offset = index * self.layer_bytes if self.paged else 0
        for tensor in self.spec.tensors:
            if tensor.name == name:
                return offset
            offset += align(self._tensor_bytes(tensor))
        raise KeyError(f"{self.spec.kind} state has no tensor {name!r}")

    def inner_shape(self, tensor: TensorSpec) -> tuple[int, ...]:
        return (self.page_size, *tensor.shape) if self.paged else tensor.shape


def group_specs(layer_specs: tuple[tuple[StateSpec, ...], ...], page_size: int) -> tuple[StateGroup, ...]:
    """Layers with equal specs form a group, in order of first appearance. A layer may be in several groups."""
    members: dict[StateSpec, list[int]] = {}
    for layer, specs in enumerate(layer_specs):
        for spec in specs:
            members.setdefault(spec, []).append(layer)
    return tuple(
        StateGroup(GroupId(i), spec, tuple(layers), page_size if isinstance(spec, PagedSpec) else 1)
        for i, (spec, layers) in enumerate(members.items())
    )
