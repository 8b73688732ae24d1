"""The exported folder is what transformers calls a GraniteMoeHybridForCausalLM."""

from pathlib import Path

import pytest
import torch

from demo.export import export, join_file, load_exported, split_file
from demo.model import TINY, Model


@pytest.fixture(scope="module")
def model() -> Model:
    torch.manual_seed(0)
    model = Model(TINY)
    with torch.no_grad():
        for parameter in model.parameters():  # so that no weight is at a neutral value
            parameter += 0.05 * torch.randn_like(parameter)
    return model


@pytest.fixture(scope="module")
def ids() -> torch.Tensor:
    return torch.randint(0, TINY.vocabulary, (2, 192), generator=torch.Generator().manual_seed(1))


@pytest.mark.filterwarnings("ignore")
@torch.no_grad()
def test_transformers_computes_the_same_logits(model: Model, ids: torch.Tensor, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    export(model, tmp_path, torch.float32)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert type(theirs).__name__ == "GraniteMoeHybridForCausalLM"
    torch.testing.assert_close(model.logits(model(ids)), theirs(ids).logits, rtol=0, atol=1e-4)


@torch.no_grad()
def test_an_exported_model_loads_back_unchanged(model: Model, ids: torch.Tensor, tmp_path: Path) -> None:
    export(model, tmp_path, torch.float32)
    again = load_exported(tmp_path)
    assert again.config == TINY
    assert torch.equal(again.logits(again(ids)), model.logits(model(ids)))


def test_a_file_in_parts_is_put_together_again(tmp_path: Path) -> None:
    source = tmp_path / "weights"
    source.write_bytes(bytes(range(256)) * 5)
    parts = split_file(source, tmp_path, size=100)
    assert len(parts) == 13
    join_file(tmp_path, "weights", tmp_path / "joined")
    assert (tmp_path / "joined").read_bytes() == source.read_bytes()
