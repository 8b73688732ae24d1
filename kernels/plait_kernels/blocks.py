"""Cutting a row of any length into equal blocks, and decays inside a block, for the chunked form of the scans."""

import torch
from torch import Tensor
from torch.nn import functional as F


def to_blocks(x: Tensor, block: int) -> Tensor:
    """``[t, heads, ...]`` to ``[heads, blocks, block, ...]``, the tail filled with zeros."""
    padding = -x.shape[0] % block
    x = F.pad(x, (0, 0) * (x.dim() - 1) + (0, padding))
    return x.reshape(-1, block, *x.shape[1:]).movedim(2, 0)


def from_blocks(x: Tensor, tokens: int) -> Tensor:
    """The inverse: ``[heads, blocks, block, ...]`` to ``[tokens, heads, ...]``."""
    return x.movedim(0, 2).flatten(0, 1)[:tokens]


def block_decay(log_decay: Tensor) -> Tensor:
    """``[..., block]`` log decays, at most 0, to ``[..., block, block]`` factors: exp of the sum over (j, i], else 0.

    Each sum is built on its own (Dao and Gu 2024, listing 1, "segsum"): a difference of running sums would lose the
    small decays behind a large one.
    """
    block = log_decay.shape[-1]
    steps = log_decay.unsqueeze(-1).expand(*log_decay.shape, block).tril(-1).cumsum(-2)
    above = torch.ones(block, block, dtype=torch.bool, device=log_decay.device).triu(1)
    return steps.masked_fill(above, -torch.inf).exp()
