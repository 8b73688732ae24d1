"""Golden checkpoints, made once a session; one thread, so that sums are in the same order on every machine."""

from collections.abc import Callable, Iterator

import pytest
import torch

from tests.golden import Golden, make_golden


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def goldens(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Golden]:
    made: dict[str, Golden] = {}

    def get(name: str) -> Golden:
        if name not in made:
            made[name] = make_golden(name, tmp_path_factory.mktemp(name))
        return made[name]

    return get
