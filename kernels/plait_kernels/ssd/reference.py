"""``ssd`` in plain PyTorch: token by token for decodes, the chunked form (section 6 of the paper) for longer rows."""

import torch
from torch import Tensor
from torch.nn import functional as F

from plait_kernels.blocks import block_decay, from_blocks, to_blocks
from plait_kernels.scan import scan_rows
from plait_kernels.segments import Segments
from plait_kernels.storage import Slots

BLOCK = 64
"""Tokens that are solved as one matrix; the state is carried from block to block."""


def ssd(
    x: Tensor,
    dt: Tensor,
    a_log: Tensor,
    b: Tensor,
    c: Tensor,
    d: Tensor,
    dt_bias: Tensor,
    view: Tensor,
    slots: Slots,
    segments: Segments,
    *,
    dt_limit: tuple[float, float],
) -> Tensor:
    heads_per_group = x.shape[1] // b.shape[1]
    step_size = F.softplus(dt.float() + dt_bias.float()).clamp(*dt_limit)  # [T, h]
    log_decay = -a_log.float().exp() * step_size
    out = torch.empty_like(x)
    for tokens, rows, state, put in scan_rows(view, slots, segments):
        inputs = (
            x[tokens].float() * step_size[tokens].unsqueeze(-1),
            log_decay[tokens],
            b[tokens].float().repeat_interleave(heads_per_group, dim=1),
            c[tokens].float().repeat_interleave(heads_per_group, dim=1),
        )
        single = tokens.stop - tokens.start == rows
        y, last = step(*inputs, state.float()) if single else chunked(*inputs, state[0].float())
        out[tokens] = (y + d.float().unsqueeze(-1) * x[tokens].float()).to(x.dtype)
        put(last if single else last.unsqueeze(0))
    return out


def step(x: Tensor, log_decay: Tensor, b: Tensor, c: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """One token a row. ``x`` (times dt) ``[rows, h, p]``, ``b``, ``c`` ``[rows, h, n]``, state ``[rows, h, p, n]``."""
    state = state * log_decay.exp()[..., None, None] + x.unsqueeze(-1) * b.unsqueeze(-2)
    return (state * c.unsqueeze(-2)).sum(-1), state


def chunked(x: Tensor, log_decay: Tensor, b: Tensor, c: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """One row. ``x`` (times dt) ``[t, h, p]``, ``b``, ``c`` ``[t, h, n]``, ``state`` ``[h, p, n]``.

    The tail block is filled with zeros: no input and no decay, so the state behind it is that of the last real token.
    """
    tokens = x.shape[0]
    x, b, c, log_decay = (to_blocks(u, BLOCK) for u in (x, b, c, log_decay))  # [h, blocks, BLOCK, ...]
    decay = block_decay(log_decay)  # [h, blocks, BLOCK, BLOCK]
    from_start = log_decay.cumsum(-1).exp()  # decay from the block's start to behind each token
    to_end = decay[:, :, -1]  # and from each token to the block's end

    inside = (c @ b.mT * decay) @ x
    added = (x * to_end.unsqueeze(-1)).mT @ b  # [h, blocks, p, n]
    before = torch.empty_like(added)
    for i in range(added.shape[1]):
        before[:, i] = state
        state = state * from_start[:, i, -1, None, None] + added[:, i]
    across = (c * from_start.unsqueeze(-1)) @ before.mT
    return from_blocks(inside + across, tokens), state
