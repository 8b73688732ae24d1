"""A batch of decodes alone, for ops that are joined from others."""

import torch

from plait_kernels.segments import Segments


def all_decodes(rows: int, device: torch.device) -> Segments:
    """Segments of ``rows`` sequences of one token. Positions are unknown and zero: only scans may be given this."""
    nothing = torch.zeros(rows, dtype=torch.int64, device=device)
    return Segments(
        decodes=rows,
        starts=torch.arange(rows + 1, dtype=torch.int32, device=device),
        lengths=torch.ones(rows, dtype=torch.int32, device=device),
        positions=nothing,
        sequence_of=torch.arange(rows, device=device),
        starts_host=tuple(range(rows + 1)),
        lengths_host=(1,) * rows,
        chunks=(),
    )
