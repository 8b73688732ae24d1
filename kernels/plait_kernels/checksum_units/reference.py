"""``checksum_units`` in plain PyTorch, each unit where it lies."""

from functools import lru_cache

import torch
from torch import Tensor

from plait_kernels.copy_units.reference import GRANULE_BYTES

WORD = 8


def checksum_units(arena: Tensor, units: Tensor, n_bytes: int) -> Tensor:
    words, n = arena.view(torch.int64), n_bytes // WORD
    weights = _weights(n, arena.device)
    total = torch.zeros((), dtype=torch.int64, device=arena.device)
    for place, unit in enumerate(units.tolist()):
        begin = unit * (GRANULE_BYTES // WORD)
        row = words[begin : begin + n]
        total += torch.dot(row, weights) + 2 * place * n * row.sum()
    return total


@lru_cache(maxsize=8)
def _weights(n: int, device: torch.device) -> Tensor:
    return torch.arange(1, 2 * n, 2, device=device)
