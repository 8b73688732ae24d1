"""Unit numbers on their way to the device."""

import torch
from torch import Tensor

from plait_engine.state.spec import Granule


def addresses(units: list[Granule], device: torch.device) -> Tensor:
    """int64 ``[units]``. On a GPU from pinned memory, so that the host need not wait for what the device has to do."""
    tensor = torch.tensor(units, dtype=torch.int64)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)
