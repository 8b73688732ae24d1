"""How one step's flat batch of tokens splits into sequences and chunks: what every sequence-aware kernel is given."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Chunk:
    """One row of the chunk table: tokens ``[start, end)`` of the flat batch, all of sequence row ``sequence``.

    Rows of one sequence are consecutive and in order, so a scan carries its state from row to row. A row may have any
    length of at least 1. Where ``emit`` is set, the state after the row's last token is also written to the addresses
    that the caller passes for it (a checkpoint); the sequence's own slot always receives the last row's state.
    """

    start: int
    end: int
    sequence: int
    emit: bool = False


@dataclass(frozen=True)
class Room:
    """What a recorded step has room for, so that its launches have the same sizes whatever it holds.

    ``chunks``: rows of the chunk table; ``history``: positions of a sequence. The last sequence of such a step has no
    tokens: what is left over of a table names it.
    """

    chunks: int
    history: int


@dataclass(frozen=True)
class Segments:
    """A flat batch: first ``decodes`` sequences of exactly one token each, then longer pieces.

    ``starts``       int32 ``[sequences + 1]``: where each sequence's tokens begin in the flat batch
    ``lengths``      int32 ``[sequences]``: tokens of the sequence known after this step (its position afterwards)
    ``positions``    int64 ``[tokens]``: position of each token in its sequence
    ``sequence_of``  int64 ``[tokens]``: which sequence row each token belongs to
    ``starts_host`` and ``lengths_host`` are the same numbers without a device round trip. ``chunks`` covers the tokens
    behind the decodes exactly once. Padded decodes are ordinary rows that own a reserved page and slot. ``room`` is
    None unless the step is one that is recorded.
    """

    decodes: int
    starts: Tensor
    lengths: Tensor
    positions: Tensor
    sequence_of: Tensor
    starts_host: tuple[int, ...]
    lengths_host: tuple[int, ...]
    chunks: tuple[Chunk, ...]
    room: Room | None = None

    @property
    def tokens(self) -> int:
        return self.starts_host[-1]

    @property
    def sequences(self) -> int:
        return len(self.lengths_host)

    @property
    def longest(self) -> int:
        """Positions that a sequence behind the decodes has at most."""
        return max(self.lengths_host[self.decodes :]) if self.room is None else self.room.history

    @cached_property
    def chunk_table(self) -> Tensor:
        """int32 ``[chunks, 3]`` of (start, end, sequence) on the device of ``starts``."""
        rows = [(c.start, c.end, c.sequence) for c in self.chunks]
        return torch.tensor(rows, dtype=torch.int32, device=self.starts.device).reshape(-1, 3)
