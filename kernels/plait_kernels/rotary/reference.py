"""``rotary`` in plain PyTorch."""

import torch
from torch import Tensor


def rotary(x: Tensor, positions: Tensor, cos_sin: Tensor) -> Tensor:
    rotary_dim = cos_sin.shape[-1]
    cos, sin = cos_sin[positions].unsqueeze(1).chunk(2, dim=-1)  # [T, 1, rotary_dim / 2]
    first, second = x[..., :rotary_dim].float().chunk(2, dim=-1)
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return torch.cat((turned.to(x.dtype), x[..., rotary_dim:]), dim=-1)
