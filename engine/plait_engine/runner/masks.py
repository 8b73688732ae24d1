"""Which tokens may come next, as bits, brought to the logits."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Masks:
    """``rows`` int64 ``[masked]`` of the logits; ``bits`` int32 ``[masked, words]``, 32 tokens a word, lowest first."""

    rows: Tensor
    bits: Tensor


def allowed(masks: Masks, vocab_size: int) -> Tensor:
    """bool ``[masked, vocab]``. Tokens beyond the bits are not allowed."""
    shifts = torch.arange(32, dtype=torch.int32, device=masks.bits.device)
    spread = ((masks.bits.unsqueeze(-1) >> shifts) & 1).bool().flatten(1)[:, :vocab_size]
    return torch.nn.functional.pad(spread, (0, vocab_size - spread.shape[1]), value=False)


def masked(shaped: Tensor, logits: Tensor, masks: Masks) -> Tensor:
    """``shaped`` ``[rows, vocab]`` with minus infinity where a row's mask forbids.

    ``logits`` are what penalties were applied to: where these leave nothing that the mask allows, the grammar wins.
    """
    may = allowed(masks, shaped.shape[-1])
    rows = shaped[masks.rows].masked_fill(~may, -torch.inf)
    dead = rows.amax(dim=-1, keepdim=True) == -torch.inf
    rows = torch.where(dead, logits[masks.rows].masked_fill(~may, -torch.inf), rows)
    return shaped.index_copy(0, masks.rows, rows)
