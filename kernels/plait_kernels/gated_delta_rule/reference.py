"""``gated_delta_rule`` in plain PyTorch: token by token for decodes, the chunked form (section 3.3) for longer rows."""

import torch
from torch import Tensor
from torch.nn import functional as F

from plait_kernels.blocks import block_decay, from_blocks, to_blocks
from plait_kernels.scan import scan_rows
from plait_kernels.segments import Segments
from plait_kernels.storage import Slots

BLOCK = 64
"""Tokens that are solved as one triangular system; the state is carried from block to block."""

UNIT_EPS = 1e-6
"""Added to the squared length of q and k, as the models were trained."""


def gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    view: Tensor,
    slots: Slots,
    segments: Segments,
) -> Tensor:
    values_per_key = v.shape[1] // k.shape[1]
    q, k = (unit_length(u.float()).repeat_interleave(values_per_key, dim=1) for u in (q, k))
    q = q * q.shape[-1] ** -0.5
    log_decay = -a_log.float().exp() * F.softplus(a.float() + dt_bias.float())  # [T, hv]
    beta = b.float().sigmoid()
    out = torch.empty_like(v)
    for tokens, rows, state, put in scan_rows(view, slots, segments):
        inputs = (q[tokens], k[tokens], v[tokens].float(), log_decay[tokens], beta[tokens])
        single = tokens.stop - tokens.start == rows
        o, last = step(*inputs, state.float()) if single else chunked(*inputs, state[0].float())
        out[tokens] = o.to(v.dtype)
        put(last if single else last.unsqueeze(0))
    return out


def unit_length(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + UNIT_EPS)


def step(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """One token a row. ``q``, ``k`` ``[rows, h, dk]``, ``v`` ``[rows, h, dv]``, ``state`` ``[rows, h, dk, dv]``."""
    state = state * log_decay.exp()[..., None, None]
    known = (state * k.unsqueeze(-1)).sum(-2)
    state = state + k.unsqueeze(-1) * (beta.unsqueeze(-1) * (v - known)).unsqueeze(-2)
    return (state * q.unsqueeze(-1)).sum(-2), state


def chunked(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """One row. ``q``, ``k`` ``[t, h, dk]``, ``v`` ``[t, h, dv]``, ``log_decay``, ``beta`` ``[t, h]``, a state.

    Inside a block every correction depends on those before it: a unit lower triangular system, solved at once (the WY
    form). The tail block is filled with zeros: no key, no decay, so the state behind it is that of the last real token.
    """
    tokens = q.shape[0]
    q, k, v, log_decay, beta = (to_blocks(u, BLOCK) for u in (q, k, v, log_decay, beta))  # [h, blocks, BLOCK, ...]
    decay = block_decay(log_decay)
    from_start = log_decay.cumsum(-1).exp().unsqueeze(-1)
    to_end = decay[:, :, -1].unsqueeze(-1)

    k_beta = k * beta.unsqueeze(-1)
    system = (k_beta @ k.mT * decay).tril(-1)  # its unit diagonal is implied
    sides = torch.cat((v * beta.unsqueeze(-1), k_beta * from_start), dim=-1)
    solved = torch.linalg.solve_triangular(system, sides, upper=False, unitriangular=True)
    written, erased = solved.split((v.shape[-1], k.shape[-1]), dim=-1)
    scores = q @ k.mT * decay

    out = torch.empty_like(v)
    for i in range(q.shape[1]):
        fresh = written[:, i] - erased[:, i] @ state  # [h, BLOCK, dv]
        out[:, i] = (q[:, i] * from_start[:, i]) @ state + scores[:, i] @ fresh
        state = state * from_start[:, i, -1:] + (k[:, i] * to_end[:, i]).mT @ fresh
    return from_blocks(out, tokens), state
