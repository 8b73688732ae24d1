"""``causal_conv`` in C++."""

import torch
from torch import Tensor

from plait_kernels.causal_conv import Activation, CausalConv, reference
from plait_kernels.cpu.library import DTYPES, STEP, Library, pointer, step_fields, step_fits
from plait_kernels.segments import Segments
from plait_kernels.storage import Slots


def cpu_causal_conv(library: Library) -> CausalConv:
    call = library.op("causal_conv", "10q" + STEP)

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
        dtype = x.dtype
        fits = (
            dtype in DTYPES
            and weight.dtype == dtype
            and weight.is_contiguous()
            and x.stride(-1) == 1
            and (bias is None or (bias.dtype == dtype and bias.is_contiguous()))
            and step_fits(view, slots)
        )
        if not fits:
            return reference.causal_conv(x, weight, bias, view, slots, segments, activation=activation)
        channels, width = weight.shape
        out = torch.empty((x.shape[0], channels), dtype=dtype)
        call(
            DTYPES[dtype],
            DTYPES[view.dtype],
            channels,
            width,
            activation == "silu",
            x.data_ptr(),
            x.stride(0),
            weight.data_ptr(),
            pointer(bias),
            out.data_ptr(),
            *step_fields(view, slots, segments),
        )
        return out

    return causal_conv
