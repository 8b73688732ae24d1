"""``gated_delta_rule`` in C++: the recurrence itself, the same to the bit for every way of cutting the tokens."""

import torch
from torch import Tensor

from plait_kernels.cpu.library import DTYPES, STEP, Library, step_fields, step_fits
from plait_kernels.gated_delta_rule import GatedDeltaRule, reference
from plait_kernels.segments import Segments
from plait_kernels.storage import Slots


def cpu_gated_delta_rule(library: Library) -> GatedDeltaRule:
    call = library.op("gated_delta_rule", "22q" + STEP)

    def gated_delta_rule(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        a: Tensor,
        b: Tensor,
        a_log: Tensor,
        dt_bias: Tensor,
        view: Tensor,
        slots: Slots,
        segments: Segments,
    ) -> Tensor:
        dtype, parameter = q.dtype, a_log.dtype
        fits = (
            dtype in DTYPES
            and k.dtype == v.dtype == a.dtype == b.dtype == dtype
            and parameter in DTYPES
            and dt_bias.dtype == parameter
            and q.stride(-1) == k.stride(-1) == v.stride(-1) == a.stride(-1) == b.stride(-1) == 1
            and view.dtype == torch.float32
            and step_fits(view, slots)
        )
        if not fits:
            return reference.gated_delta_rule(q, k, v, a, b, a_log, dt_bias, view, slots, segments)
        tokens, value_heads, value_dim = v.shape
        out = torch.empty((tokens, value_heads, value_dim), dtype=dtype)
        call(
            DTYPES[dtype],
            DTYPES[parameter],
            k.shape[1],
            value_heads,
            k.shape[2],
            value_dim,
            q.data_ptr(),
            *q.stride()[:2],
            k.data_ptr(),
            *k.stride()[:2],
            v.data_ptr(),
            *v.stride()[:2],
            a.data_ptr(),
            a.stride(0),
            b.data_ptr(),
            b.stride(0),
            a_log.data_ptr(),
            dt_bias.data_ptr(),
            out.data_ptr(),
            *step_fields(view, slots, segments),
        )
        return out

    return gated_delta_rule
