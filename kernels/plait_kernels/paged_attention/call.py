"""One call of ``paged_attention``, with shapes, strides and flags as GPU kernels take them."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from plait_kernels.segments import Segments
from plait_kernels.storage import Pages
from plait_kernels.triton_math import TENSOR_CORE_ROWS, dot_precision, power_of_two


@dataclass(frozen=True)
class Call:
    q: Tensor
    k: Tensor
    v: Tensor
    k_view: Tensor
    v_view: Tensor
    pages: Pages
    segments: Segments
    scale: float
    window: int | None
    softcap: float | None
    sinks: Tensor | None
    out: Tensor

    @property
    def group(self) -> int:
        return self.q.shape[1] // self.k.shape[1]

    @property
    def page_strides(self) -> tuple[int, ...]:
        return (*self.k_view.stride()[:2], *self.v_view.stride()[:2])

    @property
    def rule(self) -> tuple[int, float, float]:
        return self.window or 0, self.scale, self.softcap or 1.0

    @property
    def flags(self) -> dict[str, Any]:
        return {
            "WINDOWED": self.window is not None,
            "CAPPED": self.softcap is not None,
            "SINKS": self.sinks is not None,
            "PAGE": self.pages.page_size,
            "D": power_of_two(self.q.shape[2], TENSOR_CORE_ROWS),
            "DV": power_of_two(self.v.shape[2], TENSOR_CORE_ROWS),
            "PRECISION": dot_precision(self.q.dtype),
        }
