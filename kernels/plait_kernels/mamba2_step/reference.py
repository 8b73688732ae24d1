"""``mamba2_step`` as the ops that it joins."""

import torch
from torch import Tensor

from plait_kernels.causal_conv.reference import causal_conv
from plait_kernels.decodes import all_decodes
from plait_kernels.norm.reference import gated_rms_norm
from plait_kernels.ssd.reference import ssd
from plait_kernels.storage import Slots


def mamba2_step(
    mixed: Tensor,
    gate: Tensor,
    dt: Tensor,
    conv_weight: Tensor,
    conv_bias: Tensor | None,
    a_log: Tensor,
    d: Tensor,
    dt_bias: Tensor,
    norm_weight: Tensor,
    eps: float,
    conv_view: Tensor,
    ssm_view: Tensor,
    slots: Slots,
    *,
    dt_limit: tuple[float, float],
) -> Tensor:
    heads, head_dim, state_dim = ssm_view.shape[1:]
    bc = (mixed.shape[1] - heads * head_dim) // 2
    segments = all_decodes(len(mixed), mixed.device)
    turned = causal_conv(mixed, conv_weight, conv_bias, conv_view, slots, segments, activation="silu")
    x, b, c = torch.split(turned, [heads * head_dim, bc, bc], dim=-1)
    x = x.reshape(-1, heads, head_dim)
    b, c = (u.reshape(-1, bc // state_dim, state_dim) for u in (b, c))
    y = ssd(x, dt, a_log, b, c, d, dt_bias, ssm_view, slots, segments, dt_limit=dt_limit)
    return gated_rms_norm(y.flatten(1), gate, norm_weight, eps, norm_first=False, groups=bc // state_dim)
