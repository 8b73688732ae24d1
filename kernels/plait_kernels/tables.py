"""Small tables about a step that several kernels and all layers share: built once, on the host, and kept with it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from plait_kernels.segments import Segments

T = TypeVar("T")


@dataclass(frozen=True)
class ScanTable:
    """The chunk table as scans walk it.

    ``rows``    int32 ``[rows, 5]``: (start, end, chunk, sequence, first block). Rows of the chunk table, cut further
    where they
                are longer than asked for; ``chunk`` is the row of the chunk table that ends here, else -1
    ``groups``  int32 ``[groups, 3]``: (first row, end row, sequence), one for each sequence that has rows
    ``blocks``  int32 ``[blocks, 2]``: (start, end) of the blocks that rows are cut into, row after row
    """

    rows: Tensor
    groups: Tensor
    blocks: Tensor


def scan_table(segments: Segments, block: int, longest_row: int | None = None) -> ScanTable:
    """``longest_row`` (a multiple of ``block``) cuts longer rows."""

    def build() -> ScanTable:
        rows: list[tuple[int, ...]] = []
        groups: list[list[int]] = []
        blocks: list[tuple[int, ...]] = []
        for index, chunk in enumerate(segments.chunks):
            if not groups or groups[-1][2] != chunk.sequence:
                groups.append([len(rows), len(rows), chunk.sequence])
            size = longest_row or chunk.end - chunk.start
            for start in range(chunk.start, chunk.end, size):
                end = min(start + size, chunk.end)
                rows.append((start, end, index if end == chunk.end else -1, chunk.sequence, len(blocks)))
                blocks.extend((at, min(at + block, end)) for at in range(start, end, block))
            groups[-1][1] = len(rows)
        device = segments.starts.device
        return ScanTable(to_device(rows, 5, device), to_device(groups, 3, device), to_device(blocks, 2, device))

    return kept(segments, ("scan", block, longest_row), build)


def query_tiles(segments: Segments, tokens: int) -> Tensor:
    """int32 ``[tiles, 2]`` of (sequence, first token in the flat batch): all behind the decodes, ``tokens`` at a time.

    Those with the longest history come first: they take longest, and the short ones fill the gaps at the end.
    """

    def build() -> Tensor:
        tiles: list[tuple[int, int, int]] = []
        for row in range(segments.decodes, segments.sequences):
            start, end = segments.starts_host[row : row + 2]
            first = segments.lengths_host[row] - (end - start)
            tiles.extend((first + at - start, row, at) for at in range(start, end, tokens))
        tiles.sort(key=lambda tile: -tile[0])
        return to_device([tile[1:] for tile in tiles], 2, segments.starts.device)

    return kept(segments, ("tiles", tokens), build)


def kept(segments: Segments, key: tuple[object, ...], build: Callable[[], T]) -> T:
    """``build()``, once for each step: kept in the step's ``__dict__``, where ``cached_property`` keeps things too."""
    values = segments.__dict__.setdefault("_kernel_tables", {})
    if key not in values:
        values[key] = build()
    found: T = values[key]
    return found


def to_device(rows: Sequence[Sequence[int]], width: int, device: torch.device) -> Tensor:
    """int32 ``[rows, width]``, without waiting for the device."""
    table = torch.tensor(rows, dtype=torch.int32).reshape(-1, width)
    return table.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else table.to(device)
