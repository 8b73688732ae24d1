"""``linear`` in plain PyTorch."""

import torch
from torch import Tensor
from torch.nn import functional as F


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, out_dtype: torch.dtype | None = None) -> Tensor:
    out = F.linear(x, weight, bias)
    return out if out_dtype is None else out.to(out_dtype)
