"""The benchmark of drift tells states in fp32 from states in bf16, and both from wrong ones. Runs anywhere."""

import pytest
import torch

from benchmarks.gpu import state_drift
from benchmarks.gpu.state_drift import Delta, Mamba, stored, truth
from plait_kernels.select import Kernels

CPU = torch.device("cpu")


@pytest.mark.parametrize("make", [lambda: Delta(CPU, 1, 2, 16), lambda: Mamba(CPU, 2, 16, 16)], ids=["delta", "mamba"])
@pytest.mark.parametrize("prompt", [90, 25], ids=["prefill", "decode"])
def test_drift_is_seen_in_bf16_only(make: type, prompt: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"POSITIONS": (25, 80), "TOKENS": 90, "WINDOW": 10, "PREFILL": 40}.items():
        monkeypatch.setattr(state_drift, name, value)
    torch.manual_seed(0)
    recurrence = make()
    inputs = recurrence.inputs(90)
    true = truth(recurrence, inputs)
    for dtype, least, most in ((torch.float32, 0.0, 1e-5), (torch.bfloat16, 1e-4, 3e-2)):
        run = stored(recurrence, inputs, Kernels(), dtype, prompt)
        for position in (25, 80):
            assert all(least <= error <= most for error in run.errors(true, position))
