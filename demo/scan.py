"""The state-space scan of Mamba-2, in chunks and one position at a time.

Source: Dao and Gu, "Transformers are SSMs" (2024), section 6: inside a chunk the recurrence is a masked matrix
product, between chunks it is a short recurrence over chunk states.

For each head, with decay a_t = exp(dt_t * A) and input x_t of `head` channels:

    S_t = a_t * S_{t-1} + dt_t * B_t x_t^T        [state, head]
    y_t = C_t^T S_t                               [head]
"""

from __future__ import annotations

import torch
from torch import Tensor

CHUNK = 64


def chunk_scan(x: Tensor, dt: Tensor, decay_rate: Tensor, b: Tensor, c: Tensor, chunk: int = CHUNK) -> Tensor:
    """The scan over whole sequences from a zero state.

    Args:
        x: [batch, length, heads, head]; length is a multiple of `chunk`.
        dt: step sizes, positive, in fp32 also where x is bf16, [batch, length, heads].
        decay_rate: A, negative, like dt, [heads].
        b: [batch, length, state], shared by the heads.
        c: [batch, length, state].
        chunk: positions per chunk.

    Returns:
        y: [batch, length, heads, head], in the dtype of x.
    """
    batch, length, heads, head = x.shape
    state = b.shape[-1]
    chunks = length // chunk
    dtype = x.dtype
    x = x.reshape(batch * chunks, chunk, heads, head)
    b = b.reshape(batch * chunks, chunk, state)
    c = c.reshape(batch * chunks, chunk, state)
    dt = dt.reshape(batch * chunks, chunk, heads)
    log_decay = (dt * decay_rate).cumsum(dim=1)  # from the chunk's start up to and with this position

    # Inside the chunk: row i takes from column j <= i what has decayed since j.
    by_head = log_decay.transpose(1, 2)  # [batch * chunks, heads, chunk]
    gap = by_head.unsqueeze(-1) - by_head.unsqueeze(-2)
    causal = torch.ones(chunk, chunk, dtype=torch.bool, device=x.device).tril()
    mask = gap.masked_fill(~causal, -torch.inf).exp() * dt.transpose(1, 2).unsqueeze(-2)
    scores = (c @ b.transpose(1, 2)).unsqueeze(1) * mask  # [batch * chunks, heads, chunk, chunk]
    inside = scores.to(dtype) @ x.transpose(1, 2)  # [batch * chunks, heads, chunk, head]

    # What each chunk adds to the state at its end.
    total = log_decay[:, -1:]  # [batch * chunks, 1, heads]
    weight = ((total - log_decay).exp() * dt).unsqueeze(-1)
    added = b.transpose(1, 2) @ (x * weight).to(dtype).flatten(2)  # [batch * chunks, state, heads * head]

    # The state at each chunk's start: all earlier chunks, decayed by what lies between.
    total = total.reshape(batch, chunks, heads).transpose(1, 2)  # [batch, heads, chunks]
    after = total.cumsum(dim=-1)
    start = after - total
    gap = start.unsqueeze(-1) - after.unsqueeze(-2)  # from the end of chunk j to the start of chunk i
    earlier = torch.ones(chunks, chunks, dtype=torch.bool, device=x.device).tril(-1)
    carry = gap.masked_fill(~earlier, -torch.inf).exp()  # [batch, heads, chunks, chunks]
    added = added.reshape(batch, chunks, state, heads, head).permute(0, 3, 1, 2, 4).flatten(3)
    states = (carry @ added.to(carry.dtype)).to(dtype)  # [batch, heads, chunks, state * head]
    states = (
        states.reshape(batch, heads, chunks, state, head)
        .permute(0, 2, 3, 1, 4)
        .reshape(batch * chunks, state, heads * head)
    )

    outside = (c @ states).reshape(batch * chunks, chunk, heads, head) * log_decay.exp().unsqueeze(-1)
    y: Tensor = inside.transpose(1, 2) + outside
    return y.to(dtype).reshape(batch, length, heads, head)


def sequential_scan(x: Tensor, dt: Tensor, decay_rate: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """The same scan, position by position as the formula reads; the tests' truth."""
    batch, length, heads, head = x.shape
    states = x.new_zeros(batch, heads, b.shape[-1], head)
    outputs = []
    for t in range(length):
        decay = (dt[:, t] * decay_rate).exp()[..., None, None]
        update = b[:, t, None, :, None] * (dt[:, t, :, None] * x[:, t])[:, :, None, :]
        states = decay * states + update
        outputs.append((c[:, t, None, None, :] @ states).squeeze(2))
    return torch.stack(outputs, dim=1)
