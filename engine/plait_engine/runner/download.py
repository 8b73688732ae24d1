"""What a step brings back to the host, without making the host wait for the steps behind it."""

import torch
from torch import Tensor

from plait_kernels.sampling import Logprobs


class Download:
    """``bring`` launches copies to the host, ``close`` marks that no more come, and after ``wait`` they are there.

    Reading a tensor off the device waits for all that was launched so far, which with overlapped steps is the next one
    too: the device would run dry.
    """

    def __init__(self, device: torch.device) -> None:
        self._event = torch.cuda.Event() if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def bring(self, tensor: Tensor) -> Tensor:
        """Its copy on the host, valid after ``wait``; on a CPU itself."""
        if self._event is None:
            return tensor
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        return host.copy_(tensor, non_blocking=True)

    def bring_logprobs(self, logprobs: Logprobs) -> Logprobs:
        return Logprobs(*(self.bring(t) for t in (logprobs.chosen, logprobs.ranks, logprobs.top_ids, logprobs.top)))

    def close(self) -> None:
        if self._event is not None:
            self._event.record()

    def wait(self) -> None:
        if self._event is not None:
            self._event.synchronize()
