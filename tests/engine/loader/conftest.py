"""A golden checkpoint to break, and the model that it should fill."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from plait_engine.loader.load import read_config
from plait_engine.models.base import Model
from plait_engine.models.registry import build_model
from plait_kernels.select import Kernels
from tests.golden import Golden, make_golden

CPU = torch.device("cpu")


@pytest.fixture(scope="session")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Golden:
    return make_golden("granite_dense", tmp_path_factory.mktemp("tied"))


@pytest.fixture(scope="session")
def untied(tmp_path_factory: pytest.TempPathFactory) -> Golden:
    return make_golden("granite_dense", tmp_path_factory.mktemp("untied"), tie_word_embeddings=False)


@pytest.fixture
def folder(tied: Golden, tmp_path: Path) -> Path:
    """A copy of the tied checkpoint."""
    return Path(shutil.copytree(tied.folder, tmp_path / "model"))


@pytest.fixture
def new_model() -> Callable[..., Model]:
    """Builds the model of a folder on the CPU, without its weights: every parameter NaN."""

    def build(folder: Path, dtype: torch.dtype = torch.float32) -> Model:
        model = build_model(read_config(folder), dtype=dtype, page_size=4, kernels=Kernels())
        model.to_empty(device=CPU)
        for parameter in model.parameters():
            parameter.data.fill_(torch.nan)
        return model

    return build


@pytest.fixture
def edit() -> Callable[[Path, Callable[[dict[str, Tensor]], object]], None]:
    """Rewrite model.safetensors after a change to its tensors."""

    def rewrite(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors")

    return rewrite
