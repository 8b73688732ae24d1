"""Unit numbers on their way to the device."""

import torch
from torch import Tensor

from plait_engine.state.spec import Granule


def addresses(units: list[Granule], device: torch.device, dtype: torch.dtype = torch.int64) -> Tensor:
    """``[units]``. On a GPU from pinned memory, so that the host need not wait for what the device has to do."""
    tensor = torch.tensor(units, dtype=dtype)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)
