from collections.abc import Iterator

import pytest
import torch

from plait_kernels.select import Kernels, select
from tests.kernels.world import LARGE, NAN


@pytest.fixture(params=[NAN, LARGE], ids=["nan", "large"])
def poison(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """The shapes here are tiny: threads would only wait for one another."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def compiled() -> Kernels:
    kernels = select(torch.device("cpu"), torch.float32)
    kernels.wait()
    return kernels


@pytest.fixture(params=["reference", "cpu"])
def kernels(request: pytest.FixtureRequest) -> Kernels:
    if request.param == "reference":
        return Kernels()
    kernels = request.getfixturevalue("compiled")
    assert isinstance(kernels, Kernels)
    if kernels.choices["linear"].implementation != "cpu":
        pytest.skip(f"no compiled kernels here: {kernels.choices['linear'].reason}")
    return kernels
