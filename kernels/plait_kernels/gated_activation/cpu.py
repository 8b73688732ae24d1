"""``gated_activation`` in C++."""

import torch
from torch import Tensor

from plait_kernels.cpu.library import DTYPES, Library
from plait_kernels.gated_activation import GatedActivation, Opening, reference

NUMBERS: dict[Opening, int] = {"silu": 0, "gelu_tanh": 1, "sigmoid": 2}
"""As ``pointwise.cpp`` tells them apart."""


def cpu_gated_activation(library: Library) -> GatedActivation:
    call = library.op("gated_activation", "9q")

    def gated_activation(gate: Tensor, up: Tensor, kind: Opening) -> Tensor:
        dtype = gate.dtype
        if dtype not in DTYPES or up.dtype != dtype or gate.stride(-1) != 1 or up.stride(-1) != 1:
            return reference.gated_activation(gate, up, kind)
        rows, n = gate.shape
        out = torch.empty((rows, n), dtype=dtype)
        call(
            DTYPES[dtype],
            rows,
            n,
            NUMBERS[kind],
            gate.data_ptr(),
            gate.stride(0),
            up.data_ptr(),
            up.stride(0),
            out.data_ptr(),
        )
        return out

    return gated_activation
