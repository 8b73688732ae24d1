"""The norms in C++, one pass over each row."""

import torch
from torch import Tensor

from plait_kernels.cpu.library import DTYPES, Library, pointer
from plait_kernels.norm import AddRmsNorm, GatedRmsNorm, RmsNorm, reference


def _alike(x: Tensor, *others: Tensor | None) -> bool:
    """Of one dtype that the library knows, with values side by side."""
    dtype = x.dtype
    return (
        dtype in DTYPES
        and x.stride(-1) == 1
        and all(u is None or (u.dtype == dtype and u.stride(-1) == 1) for u in others)
    )


def cpu_rms_norm(library: Library) -> RmsNorm:
    call = library.op("rms_norm", "9q2d")

    def rms_norm(x: Tensor, weight: Tensor | None, eps: float, *, offset: float = 0.0) -> Tensor:
        if x.dim() not in (2, 3) or not _alike(x, weight):
            return reference.rms_norm(x, weight, eps, offset=offset)
        out = torch.empty(x.shape, dtype=x.dtype)
        outer, inner = (x.shape[0], x.shape[1]) if x.dim() == 3 else (x.shape[0], 1)
        inner_stride = x.stride(1) if x.dim() == 3 else 0
        call(
            DTYPES[x.dtype],
            outer,
            inner,
            x.shape[-1],
            x.data_ptr(),
            x.stride(0),
            inner_stride,
            pointer(weight),
            out.data_ptr(),
            eps,
            offset,
        )
        return out

    return rms_norm


def cpu_add_rms_norm(library: Library) -> AddRmsNorm:
    call, norm = library.op("add_rms_norm", "10q3d"), cpu_rms_norm(library)

    def add_rms_norm(
        x: Tensor,
        residual: Tensor,
        weight: Tensor | None,
        eps: float,
        *,
        scale: float = 1.0,
        offset: float = 0.0,
        first: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        if first is not None:
            x = norm(x, first, eps, offset=offset)
        if x.dim() != 2 or not _alike(x, residual, weight):
            return reference.add_rms_norm(x, residual, weight, eps, scale=scale, offset=offset)
        rows, n = x.shape
        normed = torch.empty((rows, n), dtype=x.dtype)
        summed = torch.empty((rows, n), dtype=x.dtype)
        call(
            DTYPES[x.dtype],
            rows,
            n,
            x.data_ptr(),
            x.stride(0),
            residual.data_ptr(),
            residual.stride(0),
            pointer(weight),
            normed.data_ptr(),
            summed.data_ptr(),
            eps,
            offset,
            scale,
        )
        return normed, summed

    return add_rms_norm


def cpu_gated_rms_norm(library: Library) -> GatedRmsNorm:
    call = library.op("gated_rms_norm", "12q1d")

    def gated_rms_norm(
        x: Tensor, gate: Tensor, weight: Tensor, eps: float, *, norm_first: bool, groups: int = 1
    ) -> Tensor:
        if not _alike(x, gate, weight):
            return reference.gated_rms_norm(x, gate, weight, eps, norm_first=norm_first, groups=groups)
        rows, n = x.shape
        width = weight.shape[0]
        out = torch.empty((rows, n), dtype=x.dtype)
        call(
            DTYPES[x.dtype],
            rows,
            n,
            width,
            width // groups,
            norm_first,
            x.data_ptr(),
            x.stride(0),
            gate.data_ptr(),
            gate.stride(0),
            weight.data_ptr(),
            out.data_ptr(),
            eps,
        )
        return out

    return gated_rms_norm
