"""The bytes that are planned on the meta device are the bytes that are allocated."""

from collections.abc import Callable

import pytest
import torch

from plait_engine.loader.load import fill_model, read_config
from plait_engine.models.registry import build_model
from plait_kernels.select import Kernels
from tests.golden import SPECS, Golden

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", SPECS)
def test_weights_take_exactly_the_planned_bytes(
    goldens: Callable[[str], Golden], name: str, dtype: torch.dtype
) -> None:
    folder = goldens(name).folder
    model = build_model(read_config(folder), dtype=dtype, page_size=4, kernels=Kernels())
    planned = model.weights_bytes
    assert all(t.is_meta for t in (*model.parameters(), *model.buffers()))
    fill_model(model, folder, CPU)
    tensors = [*model.parameters(), *model.buffers()]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    assert len(storages) == len(tensors)
    assert sum(storages.values()) == planned == model.weights_bytes


def test_fused_matrices_replace_the_checkpoints(goldens: Callable[[str], Golden]) -> None:
    """As many numbers as transformers has, in fewer matrices."""
    golden = goldens("qwen3_next")
    model = build_model(read_config(golden.folder), dtype=torch.float32, page_size=4, kernels=Kernels())
    ours, theirs = list(model.parameters()), list(golden.model.parameters())
    assert sum(p.numel() for p in ours) == sum(p.numel() for p in theirs)
    assert len(ours) < len(theirs)
    assert {name for name, _ in model.named_buffers()} == {"rotary.cos_sin"}
