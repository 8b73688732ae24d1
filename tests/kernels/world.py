"""A small arena with poison in it, and steps over it: what the kernel tests stand on."""

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from plait_kernels.segments import Chunk, Segments
from plait_kernels.storage import Pages, Slots

GRANULE_BYTES = 256

NAN, LARGE = 0xFF, 0x7B
"""Poison bytes: NaN in fp32, bf16 and fp16; and finite but huge in each of them (1e36, 1e36, 61,280)."""

PAGE, WINDOW, CHUNK, CONV = 4, 8, 8, 4
"""TINY: all different from one another, so that no two can be mixed up unnoticed."""

EDGE = sorted({1, 2, 3, 4} | {n * b + d for b in (PAGE, WINDOW, 64) for n in (1, 2) for d in (-1, 0, 1)})


class Memory:
    """An arena whose units are handed out in shuffled order; whatever no one owns is poison and must stay so."""

    def __init__(self, n_bytes: int, poison: int, seed: int = 0) -> None:
        self.bytes = torch.full((n_bytes,), poison, dtype=torch.uint8)
        self.poison = poison
        self._next = 0
        self._random = torch.Generator().manual_seed(seed)

    def view(self, inner: tuple[int, ...], dtype: torch.dtype, offset: int = 0) -> Tensor:
        n = math.prod(inner) * dtype.itemsize
        granules = (self.bytes.numel() - offset - n) // GRANULE_BYTES + 1
        strides = [math.prod(inner[i + 1 :]) for i in range(len(inner))]
        typed = self.bytes.view(dtype)
        return typed.as_strided(
            (granules, *inner), (GRANULE_BYTES // dtype.itemsize, *strides), offset // dtype.itemsize
        )

    def units(self, count: int, n_bytes: int) -> list[int]:
        """Granules of ``count`` fresh units, never in order: a kernel that guesses addresses must fail."""
        granules = -(-n_bytes // GRANULE_BYTES) + 1  # one more: neighbours do not touch
        first = self._next
        self._next += count * granules
        assert self._next * GRANULE_BYTES <= self.bytes.numel(), "test arena too small"
        order = torch.randperm(count, generator=self._random).tolist()
        return [first + i * granules for i in order]


def owned_mask(memory: Memory, view: Tensor, entries: Iterable[tuple[int, ...]]) -> Tensor:
    """Which bytes of the arena lie in the given entries (leading indices) of the view."""
    mask = torch.zeros(memory.bytes.numel(), dtype=torch.bool)
    size = view.element_size()
    for entry in entries:
        part = view[entry]
        start = part.storage_offset() * size
        mask[start : start + part.numel() * size] = True
    return mask


@dataclass
class Piece:
    """A sequence's part in a step: ``history`` tokens before it, ``new`` in it, cut into chunk rows at ``cuts``."""

    history: int
    new: int
    cuts: tuple[int, ...] = ()
    emits: tuple[int, ...] = field(default=())
    """Which of its chunk rows emit a state."""

    @property
    def length(self) -> int:
        return self.history + self.new


def segments_of(decodes: Sequence[Piece], longer: Sequence[Piece] = ()) -> Segments:
    pieces = [*decodes, *longer]
    assert all(p.new == 1 for p in decodes)
    starts = [0]
    chunks = []
    for row, piece in enumerate(pieces):
        if row >= len(decodes) and piece.new:
            edges = [0, *piece.cuts, piece.new]
            for i, (a, b) in enumerate(itertools.pairwise(edges)):
                chunks.append(Chunk(starts[-1] + a, starts[-1] + b, row, i in piece.emits))
        starts.append(starts[-1] + piece.new)
    positions = [p.history + i for p in pieces for i in range(p.new)]
    return Segments(
        decodes=len(decodes),
        starts=torch.tensor(starts, dtype=torch.int32),
        lengths=torch.tensor([p.length for p in pieces], dtype=torch.int32),
        positions=torch.tensor(positions, dtype=torch.int64),
        sequence_of=torch.tensor([row for row, p in enumerate(pieces) for _ in range(p.new)], dtype=torch.int64),
        starts_host=tuple(starts),
        lengths_host=tuple(p.length for p in pieces),
        chunks=tuple(chunks),
    )


def slots_of(memory: Memory, unit_bytes: int, segments: Segments) -> Slots:
    rows = memory.units(segments.sequences, unit_bytes)
    addresses = memory.units(len(segments.chunks), unit_bytes)
    emits = [address if chunk.emit else -1 for address, chunk in zip(addresses, segments.chunks, strict=True)]
    return Slots(
        torch.tensor(rows, dtype=torch.int32), torch.tensor(emits, dtype=torch.int32) if any_emit(emits) else None
    )


def any_emit(emits: list[int]) -> bool:
    return any(address >= 0 for address in emits)


def pages_of(
    memory: Memory, unit_bytes: int, segments: Segments, page_size: int = PAGE, window: int | None = None
) -> Pages:
    """A page table; numbers not reached or behind every window name the reserved page, which stays poison."""
    reserved = memory.units(1, unit_bytes)[0]
    most = max(-(-n // page_size) for n in segments.lengths_host) + 2
    table = torch.full((segments.sequences, most), reserved, dtype=torch.int32)
    for row, length in enumerate(segments.lengths_host):
        new = segments.starts_host[row + 1] - segments.starts_host[row]
        first = 0 if window is None else max(0, length - new - window + 1) // page_size
        last = -(-length // page_size)
        table[row, first:last] = torch.tensor(memory.units(last - first, unit_bytes), dtype=torch.int32)
    numbers = segments.positions // page_size
    return Pages(
        table=table,
        write_pages=table[segments.sequence_of, numbers].long(),
        write_offsets=segments.positions % page_size,
        page_size=page_size,
    )
