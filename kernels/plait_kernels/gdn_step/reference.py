"""``gdn_step`` as the ops that it joins."""

import torch
from torch import Tensor

from plait_kernels.causal_conv.reference import causal_conv
from plait_kernels.decodes import all_decodes
from plait_kernels.gated_delta_rule.reference import gated_delta_rule
from plait_kernels.norm.reference import gated_rms_norm
from plait_kernels.storage import Slots


def gdn_step(
    mixed: Tensor,
    gate: Tensor,
    a: Tensor,
    b: Tensor,
    conv_weight: Tensor,
    conv_bias: Tensor | None,
    a_log: Tensor,
    dt_bias: Tensor,
    norm_weight: Tensor,
    eps: float,
    conv_view: Tensor,
    delta_view: Tensor,
    slots: Slots,
) -> Tensor:
    value_heads, key_dim, value_dim = delta_view.shape[1:]
    keys = (mixed.shape[1] - value_heads * value_dim) // 2
    segments = all_decodes(len(mixed), mixed.device)
    turned = causal_conv(mixed, conv_weight, conv_bias, conv_view, slots, segments, activation="silu")
    q, k, v = torch.split(turned, [keys, keys, value_heads * value_dim], dim=-1)
    q, k = (u.reshape(-1, keys // key_dim, key_dim) for u in (q, k))
    v = v.reshape(-1, value_heads, value_dim)
    out = gated_delta_rule(q, k, v, a, b, a_log, dt_bias, delta_view, slots, segments)
    return gated_rms_norm(out.flatten(1), gate, norm_weight, eps, norm_first=True)
