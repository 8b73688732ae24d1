"""Arrays of a step on their way to the device, as one copy for all of them."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

CAPACITY = 1 << 20
"""Bytes of a parcel; a larger array gets a parcel of its own."""
ALIGNMENT = 16

_DTYPES = {
    np.dtype(np.int32): torch.int32,
    np.dtype(np.int64): torch.int64,
    np.dtype(np.float32): torch.float32,
    np.dtype(np.float64): torch.float64,
}


class Upload:
    """``put`` gives the tensor that an array will be, ``send`` brings over all that were put since the last time.

    On a GPU they share a parcel of pinned memory, because each copy of its own costs as much as a small kernel, and
    from memory that is not pinned it would make the host wait. Elsewhere tensors are whole at once.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._pinned: Tensor | None = None
        self._bytes: NDArray[np.uint8] | None = None
        self._target: Tensor | None = None
        self._end = 0

    def put(self, array: NDArray[Any]) -> Tensor:
        array = np.ascontiguousarray(array)
        if self.device.type != "cuda" or not array.size:
            return torch.from_numpy(array).to(self.device)
        start = -(-self._end // ALIGNMENT) * ALIGNMENT
        if self._target is None or start + array.nbytes > len(self._target):
            self.send()
            self._open(max(CAPACITY, array.nbytes))
            start = 0
        assert self._target is not None
        assert self._bytes is not None
        self._end = start + array.nbytes
        self._bytes[start : self._end] = array.reshape(-1).view(np.uint8)
        return self._target[start : self._end].view(_DTYPES[array.dtype]).view(array.shape)

    def send(self) -> None:
        """Launches the copy; nothing put before may be used before it, everything may behind it on the same stream."""
        if self._end:
            assert self._target is not None
            assert self._pinned is not None
            self._target[: self._end].copy_(self._pinned[: self._end], non_blocking=True)
        self._pinned = self._bytes = self._target = None
        self._end = 0

    def _open(self, n_bytes: int) -> None:
        # PyTorch keeps pinned memory until the copy out of it is over, and then gives it out again.
        self._pinned = torch.empty(n_bytes, dtype=torch.uint8, pin_memory=True)
        self._bytes = self._pinned.numpy()
        self._target = torch.empty(n_bytes, dtype=torch.uint8, device=self.device)
