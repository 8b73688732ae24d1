"""``rotary`` in C++."""

import torch
from torch import Tensor

from plait_kernels.cpu.library import DTYPES, Library
from plait_kernels.rotary import Rotary, reference


def cpu_rotary(library: Library) -> Rotary:
    call = library.op("rotary", "11q")

    def rotary(x: Tensor, positions: Tensor, cos_sin: Tensor) -> Tensor:
        fits = (
            x.dtype in DTYPES
            and x.stride(-1) == 1
            and positions.dtype == torch.int64
            and positions.is_contiguous()
            and cos_sin.dtype == torch.float32
            and cos_sin.is_contiguous()
        )
        if not fits:
            return reference.rotary(x, positions, cos_sin)
        tokens, heads, dim = x.shape
        out = torch.empty((tokens, heads, dim), dtype=x.dtype)
        call(
            DTYPES[x.dtype],
            tokens,
            heads,
            dim,
            cos_sin.shape[-1],
            x.data_ptr(),
            x.stride(0),
            x.stride(1),
            positions.data_ptr(),
            cos_sin.data_ptr(),
            out.data_ptr(),
        )
        return out

    return rotary
