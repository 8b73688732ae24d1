"""Convolution and scans on the GPU: every test that the other implementations pass, run with Triton's."""

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs an NVIDIA GPU", allow_module_level=True)

from plait_kernels.select import Kernels
from tests.kernels.conftest import poison  # noqa: F401
from tests.kernels.test_scans import *  # noqa: F403
from tests.kernels.triton_world import triton_kernels

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    kernels = triton_kernels()
    assert isinstance(kernels, Kernels)
    return kernels
