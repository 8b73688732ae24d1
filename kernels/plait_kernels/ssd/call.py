"""One call of ``ssd``, with strides as the kernels take them."""

from dataclasses import dataclass

from torch import Tensor

from plait_kernels.segments import Segments
from plait_kernels.storage import Slots


@dataclass(frozen=True)
class Call:
    x: Tensor
    dt: Tensor
    a_log: Tensor
    b: Tensor
    c: Tensor
    d: Tensor
    dt_bias: Tensor
    view: Tensor
    slots: Slots
    segments: Segments
    dt_limit: tuple[float, float]
    out: Tensor

    @property
    def sizes(self) -> tuple[int, int, int]:
        return self.x.shape[2], self.b.shape[2], self.x.shape[1] // self.b.shape[1]

    @property
    def input_strides(self) -> tuple[int, ...]:
        return (
            self.x.stride(0),
            self.x.stride(1),
            self.dt.stride(0),
            self.b.stride(0),
            self.b.stride(1),
        )

    @property
    def emits(self) -> Tensor:
        return self.slots.rows if self.slots.emits is None else self.slots.emits
