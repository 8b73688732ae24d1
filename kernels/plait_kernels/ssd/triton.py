"""``ssd`` as Triton kernels: one step of every decode, and the chunked form for longer pieces."""

import torch
from torch import Tensor

from plait_kernels.segments import Segments
from plait_kernels.ssd.call import Call
from plait_kernels.ssd.parallel import run_parallel
from plait_kernels.ssd.triton_step import run_step
from plait_kernels.storage import Slots
from plait_kernels.triton_math import dense_last


def ssd(
    x: Tensor,
    dt: Tensor,
    a_log: Tensor,
    b: Tensor,
    c: Tensor,
    d: Tensor,
    dt_bias: Tensor,
    view: Tensor,
    slots: Slots,
    segments: Segments,
    *,
    dt_limit: tuple[float, float],
) -> Tensor:
    x, dt, b, c = dense_last(x), dense_last(dt), dense_last(b), dense_last(c)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    call = Call(x, dt, a_log, b, c, d, dt_bias, view, slots, segments, dt_limit, out)
    if segments.decodes:
        run_step(call)
    if segments.chunks:
        run_parallel(call)
    return out
