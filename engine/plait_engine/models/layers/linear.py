"""Matrices. Those that read the same input are one matrix: one product instead of many, with the same rounding."""

from collections.abc import Container, Iterator, Mapping
from functools import partial

import torch
from torch import Tensor, nn

from plait_engine.models.base import Build
from plait_engine.models.targets import Packed, Target

Rows = tuple[range, ...]
"""Rows of the stored matrix that a checkpoint matrix fills, in the order of the checkpoint matrix's rows."""


def stacked(sizes: Mapping[str, int]) -> dict[str, Rows]:
    """Checkpoint matrices one below the other."""
    start = 0
    parts: dict[str, Rows] = {}
    for name, size in sizes.items():
        parts[name] = (range(start, start + size),)
        start += size
    return parts


class Linear(Packed):
    """``parts``: the checkpoint's matrices, by name within the parent module, and the rows that each fills."""

    def __init__(self, inputs: int, parts: Mapping[str, Rows], build: Build, *, bias: bool = False) -> None:
        super().__init__()
        self.parts = dict(parts)
        self.kernels = build.kernels
        outputs = sum(len(rows) for pieces in parts.values() for rows in pieces)
        self.weight = nn.Parameter(torch.empty(outputs, inputs, dtype=build.dtype), requires_grad=False)
        self.bias: nn.Parameter | None = None
        if bias:
            self.bias = nn.Parameter(torch.empty(outputs, dtype=build.dtype), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """``[tokens, inputs]`` to ``[tokens, outputs]``."""
        return self.kernels.linear(x, self.weight, self.bias)

    def targets(self, parent: str, _present: Container[str]) -> Iterator[Target]:
        for name, rows in self.parts.items():
            n = sum(map(len, rows))
            shape = (n, self.weight.shape[1])
            yield Target(f"{parent}{name}.weight", shape, partial(_store_rows, self.weight.data, rows))
            if self.bias is not None:
                yield Target(f"{parent}{name}.bias", (n,), partial(_store_rows, self.bias.data, rows))


def _store_rows(stored: Tensor, rows: Rows, tensor: Tensor) -> None:
    start = 0
    for piece in rows:
        stored[piece.start : piece.stop].copy_(tensor[start : start + len(piece)])
        start += len(piece)
