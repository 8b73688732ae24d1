"""``linear`` in C++: one order of additions for every number of rows, so a row's result is the same in any batch."""

import torch
from torch import Tensor

from plait_kernels.cpu.library import DTYPES, Library, pointer
from plait_kernels.linear import Linear, reference


def cpu_linear(library: Library) -> Linear:
    call = library.op("linear", "10q")

    def linear(
        x: Tensor, weight: Tensor, bias: Tensor | None = None, *, out_dtype: torch.dtype | None = None
    ) -> Tensor:
        dtype = x.dtype
        out_dtype = out_dtype or dtype
        fits = (
            dtype in DTYPES
            and weight.dtype == dtype
            and out_dtype in DTYPES
            and weight.is_contiguous()
            and x.stride(-1) == 1
            and (bias is None or (bias.dtype == dtype and bias.is_contiguous()))
        )
        if not fits or (dtype == torch.float32 and out_dtype != dtype):
            return reference.linear(x, weight, bias, out_dtype=out_dtype)
        rows, ins = x.shape
        outs = weight.shape[0]
        out = torch.empty((rows, outs), dtype=out_dtype)
        call(
            DTYPES[dtype],
            DTYPES[out_dtype],
            rows,
            outs,
            ins,
            x.data_ptr(),
            x.stride(0),
            weight.data_ptr(),
            pointer(bias),
            out.data_ptr(),
        )
        return out

    return linear
