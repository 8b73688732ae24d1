"""Drives a model without an engine: hands out pages and slots naively, in memory that is poisoned until it is owned."""

import random
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from plait_engine.loader.load import fill_model, read_config
from plait_engine.models.base import Model, bind_states
from plait_engine.models.registry import build_model
from plait_engine.runner.batch import SlotTable, StepBatch
from plait_engine.state.arena import Arena
from plait_engine.state.spec import GRANULE_BYTES, Granule, PagedSpec, StateGroup
from plait_kernels.segments import Chunk, Segments
from plait_kernels.select import Kernels, select
from plait_kernels.storage import Pages

CPU = torch.device("cpu")
PAGE_SIZE = 4
POISON = 0xFF
"""NaN in every float format."""


@cache
def compiled_kernels(dtype: torch.dtype) -> Kernels:
    """Those that a CPU gets, once they are built; skips the test where they cannot be built."""
    kernels = select(CPU, dtype)
    kernels.wait()
    if all(choice.implementation == "reference" for choice in kernels.choices.values()):
        pytest.skip(kernels.choices["linear"].reason)
    return kernels


IMPLEMENTATIONS: dict[str, Callable[[torch.dtype], Kernels]] = {
    "reference": lambda _dtype: Kernels(),
    "compiled": compiled_kernels,
}


def load(
    folder: Path,
    dtype: torch.dtype = torch.float32,
    state_dtype: torch.dtype = torch.float32,
    implementation: str = "reference",
    **options: Any,
) -> Model:
    model = build_model(
        read_config(folder),
        dtype=dtype,
        state_dtype=state_dtype,
        page_size=PAGE_SIZE,
        kernels=IMPLEMENTATIONS[implementation](dtype),
        **options,
    )
    return fill_model(model, folder, CPU)


@dataclass
class Sequence:
    """``units[group]``: pages by number, or one slot row for each layer. A page given back is None."""

    units: list[list[Granule | None]]
    position: int = 0


@dataclass
class Driver:
    """Owns an arena with room for ``units`` units of every group, handed out in random order."""

    model: Model
    units: int = 400
    seed: int = 0
    row_length: int = 5
    """Longest row of the chunk table: rows are as ragged as they come."""
    arena: Arena = field(init=False)
    free: list[list[Granule]] = field(init=False)
    reserved: list[list[Granule]] = field(init=False)

    def __post_init__(self) -> None:
        groups = self.model.plan.groups
        self.arena = Arena(sum(group.unit_bytes for group in groups) * self.units, CPU)
        self.arena.bytes.fill_(POISON)
        self.model.bind(bind_states(self.model.plan, self.arena))
        self.free, start = [], 0
        for group in groups:
            step = group.unit_bytes // GRANULE_BYTES
            addresses = [Granule(start + i * step) for i in range(self.units)]
            random.Random(self.seed).shuffle(addresses)
            self.free.append(addresses)
            start += step * self.units
        self.reserved = [self._take(group, 1 if group.paged else len(group.layers)) for group in groups]

    def sequence(self) -> Sequence:
        """A fresh one: its slots are zero, its pages are whatever lay there."""
        groups = self.model.plan.groups
        return Sequence([[] if group.paged else list(self._take(group, len(group.layers))) for group in groups])

    def drop(self, sequence: Sequence) -> None:
        """Give everything back, poisoned."""
        for group, units in zip(self.model.plan.groups, sequence.units, strict=True):
            for unit in units:
                self._give_back(group, unit)

    def run(self, pieces: Seq[tuple[Sequence, Tensor]], *, pad_decodes: int = 0) -> list[Tensor]:
        """One step. The logits ``[tokens, vocab]`` of each piece, in the order given.

        Pieces of one token go first, as decodes, with junk rows up to a multiple of ``pad_decodes``.
        """
        order = sorted(range(len(pieces)), key=lambda i: len(pieces[i][1]) != 1)
        ordered = [pieces[i] for i in order]
        decodes = sum(len(tokens) == 1 for _, tokens in ordered)
        padding = -decodes % pad_decodes if pad_decodes else 0
        rows: list[tuple[Sequence | None, Tensor]] = list(ordered)
        rows[decodes:decodes] = [(None, torch.tensor([7]))] * padding
        for sequence, tokens in ordered:
            self._extend(sequence, len(tokens))
        segments = self._segments(rows, decodes + padding)
        groups = tuple(self._table(i, rows, segments) for i in range(len(self.model.plan.groups)))
        token_ids = torch.cat([tokens for _, tokens in rows])
        with torch.inference_mode():
            hidden = self.model(StepBatch(token_ids, segments, groups, torch.arange(len(token_ids))))
            logits = self.model.logits(hidden)
        by_row = logits.split([len(tokens) for _, tokens in rows])
        of_piece = [*by_row[:decodes], *by_row[decodes + padding :]]
        for sequence, tokens in ordered:
            sequence.position += len(tokens)
            self._leave_windows(sequence)
        return [of_piece[order.index(i)] for i in range(len(pieces))]

    def zero_state(self, sequence: Sequence) -> None:
        """Sabotage for SENSITIVE: forget all slots."""
        for group, units in zip(self.model.plan.groups, sequence.units, strict=True):
            for unit in units if not group.paged else []:
                self.arena.unit(unit, group.unit_bytes).zero_()

    def _take(self, group: StateGroup, n: int) -> list[Granule]:
        taken = [self.free[group.id].pop() for _ in range(n)]
        for unit in taken if not group.paged else []:
            self.arena.unit(unit, group.unit_bytes).zero_()
        return taken

    def _give_back(self, group: StateGroup, unit: Granule | None) -> None:
        if unit is not None:
            self.arena.unit(unit, group.unit_bytes).fill_(POISON)
            self.free[group.id].insert(0, unit)

    def _extend(self, sequence: Sequence, tokens: int) -> None:
        for group, units in zip(self.model.plan.groups, sequence.units, strict=True):
            if group.paged:
                units += self._take(group, -(-(sequence.position + tokens) // PAGE_SIZE) - len(units))

    def _leave_windows(self, sequence: Sequence) -> None:
        """Pages that no later token needs are given back at once."""
        for group, units in zip(self.model.plan.groups, sequence.units, strict=True):
            if isinstance(group.spec, PagedSpec):
                for number in range(group.spec.needed(sequence.position).start // PAGE_SIZE):
                    self._give_back(group, units[number])
                    units[number] = None

    def _segments(self, rows: list[tuple[Sequence | None, Tensor]], decodes: int) -> Segments:
        counts = [len(tokens) for _, tokens in rows]
        before = [sequence.position if sequence else 0 for sequence, _ in rows]
        starts = torch.tensor([0, *counts]).cumsum(0)
        positions = torch.cat([torch.arange(p, p + n) for p, n in zip(before, counts, strict=True)])
        lengths = [p + n for p, n in zip(before, counts, strict=True)]
        chunks = tuple(
            Chunk(start, min(start + self.row_length, int(starts[row + 1])), row)
            for row in range(decodes, len(rows))
            for start in range(int(starts[row]), int(starts[row + 1]), self.row_length)
        )
        return Segments(
            decodes=decodes,
            starts=starts.int(),
            lengths=torch.tensor(lengths, dtype=torch.int32),
            positions=positions,
            sequence_of=torch.arange(len(rows)).repeat_interleave(torch.tensor(counts)),
            starts_host=tuple(starts.tolist()),
            lengths_host=tuple(lengths),
            chunks=chunks,
        )

    def _table(self, index: int, rows: list[tuple[Sequence | None, Tensor]], segments: Segments) -> Pages | SlotTable:
        group, reserved = self.model.plan.groups[index], self.reserved[index]
        units = [sequence.units[index] if sequence else reserved for sequence, _ in rows]
        if not group.paged:
            return SlotTable(torch.tensor(units, dtype=torch.int32).T.contiguous())
        width = max(map(len, units)) + 1
        filled = [[reserved[0] if u is None else u for u in row] + reserved * (width - len(row)) for row in units]
        table = torch.tensor(filled, dtype=torch.int32)
        numbers = segments.positions // PAGE_SIZE
        write_pages = table[segments.sequence_of, numbers].long()
        return Pages(table, write_pages, segments.positions % PAGE_SIZE, PAGE_SIZE)
