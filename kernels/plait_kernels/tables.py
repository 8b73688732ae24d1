"""Small tables about a step that several kernels and all layers share: built once, on the host, and kept with it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from plait_kernels.recording import NotReplayableError
from plait_kernels.segments import Segments

Key = tuple[str, int]
"""Which table, and what it is cut into."""


@dataclass(frozen=True)
class ScanTable:
    """The chunk table as scans walk it.

    ``rows``    int32 ``[rows, 5]``: (start, end, chunk, sequence, first block), of the chunk table; ``chunk`` is -1
                where there is only room for one
    ``groups``  int32 ``[groups, 3]``: (first row, end row, sequence), one for each sequence that has rows
    ``blocks``  int32 ``[blocks, 2]``: (start, end) of the blocks that rows are cut into, row after row
    """

    rows: Tensor
    groups: Tensor
    blocks: Tensor


def scan_table(segments: Segments, block: int) -> ScanTable:
    return ScanTable(*_kept(segments, ("scan", block)))


def query_tiles(segments: Segments, tokens: int) -> Tensor:
    """int32 ``[tiles, 2]`` of (sequence, first token in the flat batch): all behind the decodes, ``tokens`` at a time.

    Those with the longest history come first: they take longest, and the short ones fill the gaps at the end.
    """
    return _kept(segments, ("tiles", tokens))[0]


def refill(recorded: Segments, fresh: Segments) -> None:
    """Bring what the tables of ``fresh``, a step with the same room, would hold into those that ``recorded`` has."""
    for key, tables in _tables(recorded).items():
        for table, (rows, width) in zip(tables, _host_tables(fresh, key), strict=True):
            table.copy_(to_device(rows, width, table.device))


def keys(segments: Segments) -> tuple[Key, ...]:
    """The tables that were asked of the step so far."""
    return tuple(_tables(segments))


def lay(segments: Segments, wanted: Iterable[Key]) -> None:
    """Build tables before a graph is captured that asks for them."""
    for key in wanted:
        _kept(segments, key)


def _kept(segments: Segments, key: Key) -> tuple[Tensor, ...]:
    """Built once for each step. Never while a graph is captured: replays would bring the table that was captured again,
    over the one that belongs to their step, and out of host memory that others have by then."""
    tables = _tables(segments)
    if key not in tables:
        device = segments.starts.device
        if _capturing(device):
            raise NotReplayableError(f"the table {key} was not there when the capture began")
        tables[key] = tuple(to_device(rows, width, device) for rows, width in _host_tables(segments, key))
    return tables[key]


def _capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def _tables(segments: Segments) -> dict[Key, tuple[Tensor, ...]]:
    """Kept in the step's ``__dict__``, where ``cached_property`` keeps things too."""
    found: dict[Key, tuple[Tensor, ...]] = segments.__dict__.setdefault("_kernel_tables", {})
    return found


def _host_tables(segments: Segments, key: Key) -> list[tuple[list[tuple[int, ...]], int]]:
    """Rows and width of each table of ``key``."""
    if key[0] == "tiles":
        return [(_tiles(segments, key[1]), 2)]
    rows, groups, blocks = _scan(segments, key[1])
    return [(rows, 5), (groups, 3), (blocks, 2)]


def _scan(segments: Segments, block: int) -> tuple[list[tuple[int, ...]], ...]:
    rows: list[tuple[int, ...]] = []
    groups: list[tuple[int, ...]] = []
    blocks: list[tuple[int, ...]] = []
    for index, chunk in enumerate(segments.chunks):
        first = groups.pop()[0] if groups and groups[-1][2] == chunk.sequence else len(rows)
        rows.append((chunk.start, chunk.end, index, chunk.sequence, len(blocks)))
        blocks.extend((at, min(at + block, chunk.end)) for at in range(chunk.start, chunk.end, block))
        groups.append((first, len(rows), chunk.sequence))
    if segments.room is not None:
        tokens, void, end = segments.tokens - segments.decodes, segments.sequences - 1, segments.tokens
        most = segments.room.chunks
        _fill(rows, most, (end, end, -1, void, len(blocks)))
        _fill(groups, segments.sequences - segments.decodes, (0, 0, void))
        _fill(blocks, tokens // block + most, (end, end))
    return rows, groups, blocks


def _tiles(segments: Segments, tokens: int) -> list[tuple[int, ...]]:
    tiles: list[tuple[int, int, int]] = []
    for row in range(segments.decodes, segments.sequences):
        start, end = segments.starts_host[row : row + 2]
        first = segments.lengths_host[row] - (end - start)
        tiles.extend((first + at - start, row, at) for at in range(start, end, tokens))
    tiles.sort(key=lambda tile: -tile[0])
    rows: list[tuple[int, ...]] = [tile[1:] for tile in tiles]
    if segments.room is not None:
        pieces = segments.sequences - segments.decodes
        _fill(rows, (segments.tokens - segments.decodes) // tokens + pieces, (segments.sequences - 1, segments.tokens))
    return rows


def _fill(rows: list[tuple[int, ...]], size: int, void: tuple[int, ...]) -> None:
    rows.extend([void] * (size - len(rows)))


def to_device(rows: Sequence[Sequence[int]], width: int, device: torch.device) -> Tensor:
    """int32 ``[rows, width]``, without waiting for the device."""
    table = torch.tensor(rows, dtype=torch.int32).reshape(-1, width)
    return table.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else table.to(device)
