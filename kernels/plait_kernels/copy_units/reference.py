"""``copy_units`` in plain PyTorch, one unit after another."""

from torch import Tensor

GRANULE_BYTES = 256


def copy_units(arena: Tensor, sources: Tensor, targets: Tensor, n_bytes: int) -> None:
    for source, target in zip(sources.tolist(), targets.tolist(), strict=True):
        begin, to = source * GRANULE_BYTES, target * GRANULE_BYTES
        arena[to : to + n_bytes] = arena[begin : begin + n_bytes]
