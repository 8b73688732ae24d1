import pytest
import torch

from plait_kernels.select import Kernels, select
from tests.kernels.world import LARGE, NAN


@pytest.fixture(params=[NAN, LARGE], ids=["nan", "large"])
def poison(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def kernels() -> Kernels:
    return select(torch.device("cpu"), torch.float32)
