"""``ssd`` in C++: the recurrence itself, the same to the bit for every way of cutting the tokens."""

import torch
from torch import Tensor

from plait_kernels.cpu.library import DTYPES, STEP, Library, step_fields, step_fits
from plait_kernels.segments import Segments
from plait_kernels.ssd import Ssd, reference
from plait_kernels.storage import Slots


def cpu_ssd(library: Library) -> Ssd:
    call = library.op("ssd", "21q2d" + STEP)
    most_state = 16 * library.lanes  # a tile is at most 16 vectors wide

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
        dtype, parameter = x.dtype, a_log.dtype
        tokens, heads, head_dim = x.shape
        groups, n = b.shape[1:]
        fits = (
            dtype in DTYPES
            and dt.dtype == b.dtype == c.dtype == dtype
            and parameter in DTYPES
            and d.dtype == dt_bias.dtype == parameter
            and x.stride(-1) == b.stride(-1) == c.stride(-1) == dt.stride(-1) == 1
            and view.dtype == torch.float32
            and n <= most_state
            and step_fits(view, slots)
        )
        if not fits:
            return reference.ssd(x, dt, a_log, b, c, d, dt_bias, view, slots, segments, dt_limit=dt_limit)
        out = torch.empty((tokens, heads, head_dim), dtype=dtype)
        call(
            DTYPES[dtype],
            DTYPES[parameter],
            heads,
            head_dim,
            groups,
            n,
            x.data_ptr(),
            *x.stride()[:2],
            dt.data_ptr(),
            dt.stride(0),
            a_log.data_ptr(),
            d.data_ptr(),
            dt_bias.data_ptr(),
            b.data_ptr(),
            *b.stride()[:2],
            c.data_ptr(),
            *c.stride()[:2],
            out.data_ptr(),
            *dt_limit,
            *step_fields(view, slots, segments),
        )
        return out

    return ssd
