"""Steps, slots and pages of any size on a device, as the engine would hand them to kernels."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from plait_kernels.segments import Chunk, Segments
from plait_kernels.storage import Pages, Slots

GRANULE_BYTES = 256
PAGE = 16


@dataclass(frozen=True)
class Part:
    """A sequence's part in a step: ``history`` tokens before it, ``new`` in it."""

    history: int
    new: int


@dataclass(frozen=True)
class World:
    """``fill`` False leaves memory as it is: for compiling without running."""

    device: torch.device
    fill: bool = True

    def normal(self, *shape: int, dtype: torch.dtype = torch.bfloat16, scale: float = 1.0) -> Tensor:
        tensor = torch.empty(*shape, dtype=dtype, device=self.device)
        return tensor.normal_(0.0, scale) if self.fill else tensor

    def integers(self, values: Sequence[int], dtype: torch.dtype) -> Tensor:
        return torch.tensor(values, dtype=dtype).to(self.device)

    def segments(self, decodes: int, history: int, longer: Sequence[Part] = ()) -> Segments:
        parts = [*[Part(history, 1)] * decodes, *longer]
        starts = [0, *itertools.accumulate(part.new for part in parts)]
        lengths = [part.history + part.new for part in parts]
        counts = torch.tensor([part.new for part in parts])
        sequence_of = torch.repeat_interleave(torch.arange(len(parts)), counts)
        begin = torch.tensor([part.history for part in parts])[sequence_of]
        positions = torch.arange(starts[-1]) - torch.tensor(starts)[sequence_of] + begin
        return Segments(
            decodes=decodes,
            starts=self.integers(starts, torch.int32),
            lengths=self.integers(lengths, torch.int32),
            positions=positions.to(self.device),
            sequence_of=sequence_of.to(self.device),
            starts_host=tuple(starts),
            lengths_host=tuple(lengths),
            chunks=tuple(Chunk(starts[i], starts[i + 1], i) for i in range(decodes, len(parts))),
        )

    def slots(self, rows: int, *tensors: tuple[tuple[int, ...], torch.dtype]) -> tuple[Tensor, list[Tensor], Slots]:
        """(arena, one view for each named (inner shape, dtype), slots): rows in shuffled order."""
        offsets = [0]
        for inner, dtype in tensors:
            offsets.append(offsets[-1] + -(-math.prod(inner) * dtype.itemsize // 128) * 128)
        unit = -(-offsets[-1] // GRANULE_BYTES)
        arena = torch.empty(rows * unit * GRANULE_BYTES, dtype=torch.uint8, device=self.device)
        views = [view_of(arena, inner, dtype, at) for (inner, dtype), at in zip(tensors, offsets, strict=False)]
        order = torch.randperm(rows, generator=torch.Generator().manual_seed(0)) * unit
        if self.fill:
            for view, row in itertools.product(views, order.tolist()):
                view[row] = self.normal(*view.shape[1:], scale=0.1)
        return arena, views, Slots(order.int().to(self.device))

    def pages(
        self, segments: Segments, heads: int, dim: int, dtype: torch.dtype = torch.bfloat16, first_granule: int = 0
    ) -> tuple[Tensor, Tensor, Tensor, Pages]:
        """(arena, k_view, v_view, pages): every sequence's pages all over the arena, from ``first_granule`` on."""
        half = PAGE * heads * dim * dtype.itemsize
        unit = 2 * half // GRANULE_BYTES
        counts = [-(-length // PAGE) for length in segments.lengths_host]
        size = (first_granule + sum(counts) * unit) * GRANULE_BYTES
        arena = torch.empty(size, dtype=torch.uint8, device=self.device)
        if self.fill:
            arena[first_granule * GRANULE_BYTES :].view(dtype).normal_()
        order = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(0)) * unit + first_granule
        table = torch.full((len(counts), max(counts)), int(order[0]), dtype=torch.int32)
        for row, (count, end) in enumerate(zip(counts, itertools.accumulate(counts), strict=True)):
            table[row, :count] = order[end - count : end].int()
        table = table.to(self.device)
        writes = table[segments.sequence_of, segments.positions // PAGE].long()
        inner = (PAGE, heads, dim)
        pages = Pages(table, writes, segments.positions % PAGE, PAGE)
        return arena, view_of(arena, inner, dtype), view_of(arena, inner, dtype, half), pages


def view_of(arena: Tensor, inner: tuple[int, ...], dtype: torch.dtype, offset: int = 0) -> Tensor:
    """The granule-indexed view ``[granules, *inner]`` of what lies ``offset`` bytes into a unit."""
    size = dtype.itemsize
    granules = (arena.numel() - offset - math.prod(inner) * size) // GRANULE_BYTES + 1
    strides = [math.prod(inner[i + 1 :]) for i in range(len(inner))]
    return arena.view(dtype).as_strided((granules, *inner), (GRANULE_BYTES // size, *strides), offset // size)
