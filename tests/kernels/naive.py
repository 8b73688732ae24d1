"""The ops as one recurrence or one dense sum, token by token in fp64: the truth for every implementation."""

import torch
from torch import Tensor
from torch.nn import functional as F


def causal_conv(
    x: Tensor, weight: Tensor, bias: Tensor | None, state: Tensor, activation: str | None
) -> tuple[Tensor, Tensor]:
    """``x`` ``[t, c]``, ``state`` ``[c, k - 1]``."""
    out = []
    for token in x.double():
        line = torch.cat((state.double(), token.unsqueeze(-1)), dim=-1)
        y = (line * weight.double()).sum(-1) + (0 if bias is None else bias.double())
        out.append(F.silu(y) if activation == "silu" else y)
        state = line[:, 1:]
    return torch.stack(out), state


def ssd(
    x: Tensor,
    dt: Tensor,
    a_log: Tensor,
    b: Tensor,
    c: Tensor,
    d: Tensor,
    dt_bias: Tensor,
    state: Tensor,
    dt_limit: tuple[float, float],
) -> tuple[Tensor, Tensor]:
    """``x`` ``[t, h, p]``, ``state`` ``[h, p, n]``."""
    x, dt, a_log, b, c, d, dt_bias, state = (u.double() for u in (x, dt, a_log, b, c, d, dt_bias, state))
    group = torch.arange(x.shape[1]) // (x.shape[1] // b.shape[1])
    out = []
    for t in range(x.shape[0]):
        size = F.softplus(dt[t] + dt_bias).clamp(*dt_limit)
        state = state * torch.exp(-a_log.exp() * size)[:, None, None]
        state = state + torch.einsum("h,hp,hn->hpn", size, x[t], b[t, group])
        out.append(torch.einsum("hpn,hn->hp", state, c[t, group]) + d[:, None] * x[t])
    return torch.stack(out), state


def gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, a_log: Tensor, dt_bias: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """``q``, ``k`` ``[t, hk, dk]``, ``v`` ``[t, hv, dv]``, ``state`` ``[hv, dk, dv]``."""
    q, k, v, a, b, a_log, dt_bias, state = (u.double() for u in (q, k, v, a, b, a_log, dt_bias, state))
    head = torch.arange(v.shape[1]) // (v.shape[1] // k.shape[1])
    out = []
    for t in range(q.shape[0]):
        qt = (q[t] / (q[t].square().sum(-1, keepdim=True) + 1e-6).sqrt())[head] * q.shape[-1] ** -0.5
        kt = (k[t] / (k[t].square().sum(-1, keepdim=True) + 1e-6).sqrt())[head]
        state = state * torch.exp(-a_log.exp() * F.softplus(a[t] + dt_bias))[:, None, None]
        error = v[t] - torch.einsum("hkv,hk->hv", state, kt)
        state = state + torch.einsum("hk,hv,h->hkv", kt, error, b[t].sigmoid())
        out.append(torch.einsum("hkv,hk->hv", state, qt))
    return torch.stack(out), state


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """``q`` ``[t, hq, d]`` are the last tokens of ``k`` ``[length, hkv, d]``, ``v`` ``[length, hkv, dv]``."""
    q, k, v = q.double(), k.double(), v.double()
    head = torch.arange(q.shape[1]) // (q.shape[1] // k.shape[1])
    out = []
    for i in range(q.shape[0]):
        position = k.shape[0] - q.shape[0] + i
        first = 0 if window is None else max(0, position - window + 1)
        scores = torch.einsum("hd,shd->hs", q[i], k[first : position + 1, head]) * scale
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        if sinks is not None:
            scores = torch.cat((scores, sinks.double().unsqueeze(-1)), dim=-1)
        weights = scores.softmax(-1)[:, : position + 1 - first]
        out.append(torch.einsum("hs,shd->hd", weights, v[first : position + 1, head]))
    return torch.stack(out)
