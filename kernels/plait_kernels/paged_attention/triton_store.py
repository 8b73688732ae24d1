# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
"""Keys and values of longer pieces, stored to their pages before anybody attends to them."""

import triton
import triton.language as tl

from plait_kernels.paged_attention.call import Call
from plait_kernels.triton_math import power_of_two


@triton.jit(do_not_specialize=["first"], do_not_specialize_on_alignment=["write_pages", "write_offsets"])
def _store(
    k,
    v,
    k_view,
    v_view,
    write_pages,
    write_offsets,
    first,
    keys,  # channels of a token: heads * dim
    values,
    key_dim,
    value_dim,
    k_token,
    k_head,
    v_token,
    v_head,
    k_page,
    k_entry,
    v_page,
    v_entry,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
):
    row = (first + tl.program_id(0)).to(tl.int64)
    page = tl.load(write_pages + row)
    entry = tl.load(write_offsets + row)
    i = tl.arange(0, KEYS)
    key = tl.load(k + row * k_token + (i // key_dim) * k_head + i % key_dim, mask=i < keys, other=0.0)
    tl.store(k_view + page * k_page + entry * k_entry + i, key.to(k_view.dtype.element_ty), mask=i < keys)
    j = tl.arange(0, VALUES)
    value = tl.load(v + row * v_token + (j // value_dim) * v_head + j % value_dim, mask=j < values, other=0.0)
    tl.store(v_view + page * v_page + entry * v_entry + j, value.to(v_view.dtype.element_ty), mask=j < values)


def run_store(call: Call) -> None:
    keys, values = call.k.shape[1] * call.k.shape[2], call.v.shape[1] * call.v.shape[2]
    first = call.segments.decodes
    _store[(call.segments.tokens - first,)](
        call.k,
        call.v,
        call.k_view,
        call.v_view,
        call.pages.write_pages,
        call.pages.write_offsets,
        first,
        keys,
        values,
        call.k.shape[2],
        call.v.shape[2],
        *call.k.stride()[:2],
        *call.v.stride()[:2],
        *call.page_strides,
        KEYS=power_of_two(keys),
        VALUES=power_of_two(values),
        num_warps=4,
    )
