"""``causal_conv`` in plain PyTorch."""

import torch
from torch import Tensor
from torch.nn import functional as F

from plait_kernels.causal_conv import Activation
from plait_kernels.scan import scan_rows
from plait_kernels.segments import Segments
from plait_kernels.storage import Slots


def causal_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    view: Tensor,
    slots: Slots,
    segments: Segments,
    *,
    activation: Activation,
) -> Tensor:
    def convolve(inputs: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """``inputs`` ``[rows, c, t]`` behind ``state`` ``[rows, c, k - 1]``."""
        line = torch.cat((state, inputs.to(state.dtype)), dim=-1)
        y = F.conv1d(line.float(), weight.float().unsqueeze(1), groups=weight.shape[0])
        if bias is not None:
            y = y + bias.float().unsqueeze(-1)
        return F.silu(y) if activation == "silu" else y, line[..., inputs.shape[-1] :]

    out = torch.empty_like(x)
    for tokens, rows, state, put in scan_rows(view, slots, segments):
        inputs = x[tokens].reshape(rows, -1, x.shape[1]).transpose(1, 2)
        y, last = convolve(inputs, state)
        out[tokens] = y.transpose(1, 2).reshape(-1, x.shape[1]).to(x.dtype)
        put(last)
    return out
