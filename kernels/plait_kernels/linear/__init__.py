"""Matrix product with a weight stored ``[out, in]``, as checkpoints store it."""

from typing import Protocol

import torch
from torch import Tensor


class Linear(Protocol):
    """``x @ weight.T + bias``.

    ``x`` ``[T, in]``, ``weight`` ``[out, in]``, ``bias`` ``[out]`` or None, all of one dtype; returns ``[T, out]`` in
    ``out_dtype`` (default: x's). Sums are fp32; with ``out_dtype`` fp32 an implementation need not round to the
    model's dtype in between, which is what a language model head wants.
    """

    def __call__(
        self, x: Tensor, weight: Tensor, bias: Tensor | None = None, *, out_dtype: torch.dtype | None = None
    ) -> Tensor: ...
