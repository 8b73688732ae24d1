"""What kernels played by threads have: addresses, barriers, shared memory. See ``gluon_threads``."""

import threading
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

PATIENCE_SECONDS = 20.0


@dataclass
class Pointer:
    """An address in a tensor's storage, or a tensor of them."""

    base: Tensor
    at: Any = 0

    def __add__(self, offset: Any) -> "Pointer":
        return Pointer(self.base, self.at + offset)

    @property
    def dtype(self) -> SimpleNamespace:
        return SimpleNamespace(element_ty=self.base.dtype)

    def flat(self) -> Tensor:
        base = self.base
        count = base.untyped_storage().nbytes() // base.itemsize - base.storage_offset()
        return base.as_strided((count,), (1,))

    def places(self, mask: Any, shape: torch.Size) -> tuple[Tensor, Tensor]:
        at, live = torch.broadcast_tensors(torch.as_tensor(self.at), torch.as_tensor(True if mask is None else mask))
        at, live = at.expand(shape) if shape else at, live.expand(shape) if shape else live
        assert bool((at[live] >= 0).all()), "below a tensor"
        return at, live


@dataclass
class Barrier:
    """A phase ends when all have arrived and all bytes are there."""

    left: int = 0
    count: int = 0
    bytes: int = 0
    phase: int = 0
    changed: threading.Condition = field(default_factory=threading.Condition)

    def change(self, arrivals: int, expected: int) -> None:
        with self.changed:
            self.left -= arrivals
            self.bytes += expected
            assert self.left >= 0, "more arrivals than a phase has"
            if self.left == 0 and self.bytes == 0:
                self.phase, self.left = self.phase + 1, self.count
            self.changed.notify_all()

    def wait(self, parity: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.phase & 1 != parity, PATIENCE_SECONDS), "a phase never ends"


@dataclass
class Shared:
    tensor: Tensor

    def index(self, i: int) -> "Shared":
        return Shared(self.tensor[i])

    def permute(self, order: tuple[int, ...]) -> "Shared":
        return Shared(self.tensor.permute(order))

    def slice(self, start: int, length: int) -> "Shared":
        return Shared(self.tensor[start : start + length])

    def reshape(self, shape: tuple[int, ...]) -> "Shared":
        return Shared(self.tensor.view(shape))

    def load(self, _layout: Any) -> Tensor:
        return self.tensor.clone()

    def store(self, value: Tensor) -> None:
        assert value.dtype == self.tensor.dtype
        self.tensor.copy_(value)


@dataclass
class Barriers:
    barriers: list[Barrier]

    def index(self, i: int) -> Barrier:
        return self.barriers[i]
