"""The one allocation that all pages and slots are carved from; its address never changes."""

import math

import torch
from torch import Tensor

from plait_engine.state.spec import GRANULE_BYTES, Granule, StateGroup


class Arena:
    """``n_bytes`` of device memory, seen through granule-indexed views (see ``plait_kernels.storage``)."""

    def __init__(self, n_bytes: int, device: torch.device) -> None:
        if n_bytes <= 0 or n_bytes % GRANULE_BYTES:
            raise ValueError(f"arena of {n_bytes} bytes is not a positive multiple of {GRANULE_BYTES}")
        self.bytes = torch.empty(n_bytes, dtype=torch.uint8, device=device)

    @property
    def n_bytes(self) -> int:
        return self.bytes.numel()

    def view(self, group: StateGroup, index: int, name: str) -> Tensor:
        """Tensor ``name`` of the group's ``index``-th layer as ``[granules, *inner]``.

        The first dimension counts granules, so ``view[unit]`` is that tensor in the unit at address ``unit``. For a
        paged group ``inner`` starts with ``page_size``.
        """
        tensor = next(t for t in group.spec.tensors if t.name == name)
        inner = group.inner_shape(tensor)
        size = tensor.dtype.itemsize
        offset = group.offset_bytes(index, name)
        rows = (self.n_bytes - offset - math.prod(inner) * size) // GRANULE_BYTES + 1
        if rows < 1:
            raise ValueError(f"arena of {self.n_bytes} bytes holds no unit of {group.unit_bytes} bytes")
        strides = [1]
        for extent in reversed(inner[1:]):
            strides.insert(0, strides[0] * extent)
        typed = self.bytes.view(tensor.dtype)
        return typed.as_strided((rows, *inner), (GRANULE_BYTES // size, *strides), offset // size)

    def units(self, n_bytes: int, dtype: torch.dtype = torch.uint8) -> Tensor:
        """Units of ``n_bytes`` by granule, ``[granules, n_bytes / itemsize]``: the same raw memory for every group."""
        size = dtype.itemsize
        rows = (self.n_bytes - n_bytes) // GRANULE_BYTES + 1
        return self.bytes.view(dtype).as_strided((rows, n_bytes // size), (GRANULE_BYTES // size, 1))

    def unit(self, address: Granule, n_bytes: int) -> Tensor:
        """The raw bytes of one unit."""
        start = address * GRANULE_BYTES
        return self.bytes[start : start + n_bytes]
