"""Drives a model on any device without an engine: sequences own fixed pages and slots in poisoned memory."""

from dataclasses import dataclass

import torch
from torch import Tensor

from plait_engine.models.base import Model, bind_states
from plait_engine.runner.batch import SlotTable, StepBatch
from plait_engine.state.arena import Arena
from plait_engine.state.spec import GRANULE_BYTES
from plait_kernels.segments import Chunk, Segments
from plait_kernels.storage import Pages

PAGE_SIZE = 4
ROW = 11
"""Longest row of the chunk table."""


@dataclass
class Piece:
    """``tokens`` that sequence ``owner`` is fed in a step."""

    owner: int
    tokens: list[int]


class Driver:
    """``sequences`` of at most ``longest`` tokens; units are handed out from the end, so numbers and addresses
    differ."""

    def __init__(self, model: Model, device: torch.device, sequences: int, longest: int) -> None:
        self.model, self.device = model, device
        self.positions = [0] * sequences
        groups = model.plan.groups
        pages = -(-longest // PAGE_SIZE)
        counts = [sequences * (pages if group.paged else len(group.layers)) + 1 for group in groups]
        total = sum(group.unit_bytes * count for group, count in zip(groups, counts, strict=True))
        arena = Arena(total, device)
        arena.bytes.fill_(0xFF)  # NaN in every format
        model.bind(bind_states(model.plan, arena))
        self.units: list[Tensor] = []
        start = 0
        for group, count in zip(groups, counts, strict=True):
            step = group.unit_bytes // GRANULE_BYTES
            addresses = start + step * torch.arange(count - 1, 0, -1)
            start += step * count
            self.units.append(addresses.reshape(sequences, -1).int())
            if not group.paged:
                for address in addresses.tolist():
                    arena.unit(address, group.unit_bytes).zero_()

    def run(self, pieces: list[Piece]) -> list[Tensor]:
        """One step; pieces of one token must come first. Logits ``[tokens, vocab]`` of each piece."""
        counts = [len(piece.tokens) for piece in pieces]
        decodes = sum(count == 1 for count in counts)
        before = [self.positions[piece.owner] for piece in pieces]
        starts = [0]
        for count in counts:
            starts.append(starts[-1] + count)
        lengths = [position + count for position, count in zip(before, counts, strict=True)]
        positions = torch.cat([torch.arange(p, n) for p, n in zip(before, lengths, strict=True)])
        chunks = tuple(
            Chunk(at, min(at + ROW, starts[row + 1]), row)
            for row in range(decodes, len(pieces))
            for at in range(starts[row], starts[row + 1], ROW)
        )
        sequence_of = torch.arange(len(pieces)).repeat_interleave(torch.tensor(counts))
        segments = Segments(
            decodes,
            torch.tensor(starts, dtype=torch.int32).to(self.device),
            torch.tensor(lengths, dtype=torch.int32).to(self.device),
            positions.to(self.device),
            sequence_of.to(self.device),
            tuple(starts),
            tuple(lengths),
            chunks,
        )
        owners = torch.tensor([piece.owner for piece in pieces])
        groups = tuple(
            self._pages(units[owners], sequence_of, positions)
            if group.paged
            else SlotTable(units[owners].T.contiguous().to(self.device))
            for group, units in zip(self.model.plan.groups, self.units, strict=True)
        )
        token_ids = torch.tensor([token for piece in pieces for token in piece.tokens]).to(self.device)
        with torch.inference_mode():
            rows = torch.arange(len(token_ids), device=self.device)
            logits = self.model.logits(self.model(StepBatch(token_ids, segments, groups, rows)))
        for piece in pieces:
            self.positions[piece.owner] += len(piece.tokens)
        return list(logits.cpu().split(counts))

    def _pages(self, table: Tensor, sequence_of: Tensor, positions: Tensor) -> Pages:
        writes = table[sequence_of, positions // PAGE_SIZE].long().to(self.device)
        return Pages(table.to(self.device), writes, (positions % PAGE_SIZE).to(self.device), PAGE_SIZE)
