"""Every architecture against stored logits of transformers, on the GPU, with reference and with Triton kernels.

The same comparison runs on a CPU with reference kernels, so that the stored files are known to be right.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from plait_engine.loader.load import fill_model
from plait_engine.models.base import Model
from plait_engine.models.registry import build_model
from plait_kernels.select import Kernels
from tests.gpu.checkpoints import names, prompt, stored, write_checkpoint
from tests.gpu.drive import PAGE_SIZE, Driver, Piece

GPU = torch.cuda.is_available()
needs_gpu = pytest.mark.skipif(not GPU, reason="needs an NVIDIA GPU")
DTYPES = [torch.float32, torch.bfloat16]


def kernels_of(implementation: str) -> Kernels:
    if implementation == "reference":
        return Kernels()
    from plait_kernels.triton_ops import IMPLEMENTATIONS

    return Kernels(**IMPLEMENTATIONS)


def model_of(name: str, folder: Path, dtype: torch.dtype, implementation: str, device: str) -> tuple[Model, Tensor]:
    about, logits = stored(name)
    write_checkpoint(about["config"], about["tensors"], folder)
    options: dict[str, Any] = {"state_dtype": torch.float32, "page_size": PAGE_SIZE}
    model = build_model(about["config"], dtype=dtype, kernels=kernels_of(implementation), **options)
    return fill_model(model, folder, torch.device(device)), logits


def is_right(errors: Tensor, dtype: torch.dtype) -> bool:
    """In bf16 a token may go to another expert where two are nearly alike: then it alone is far off."""
    if dtype == torch.float32:
        return float(errors.max()) < 1e-4
    return float(errors.median()) < 0.03 and float(errors.quantile(0.9)) < 0.1


def errors_of(model: Model, truth: Tensor, device: str) -> Tensor:
    """Of each token the largest error, as a part of the largest logit.

    A prompt in two chunks and then token by token, beside another sequence that is always at another place.
    """
    tokens = prompt(truth.shape[1])
    driver = Driver(model, torch.device(device), 2, 2 * len(tokens))
    seen = driver.run([Piece(0, tokens[:23])])
    driver.run([Piece(1, tokens[:5])])
    seen += driver.run([Piece(1, tokens[5:6]), Piece(0, tokens[23:30])])[1:]
    for at in range(30, len(tokens)):
        pieces = [Piece(0, tokens[at : at + 1]), Piece(1, tokens[at : at + 1])]
        seen += driver.run(pieces if at % 2 else pieces[::-1])[0 if at % 2 else 1 :][:1]
    logits = torch.cat(seen)
    assert logits.shape == truth.shape
    assert torch.isfinite(logits).all()
    return (logits - truth).abs().amax(-1) / truth.abs().max()


@pytest.fixture(autouse=True)
def no_tf32() -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False


@pytest.mark.parametrize("name", names())
def test_stored_logits_are_what_reference_kernels_give_on_a_cpu(name: str, tmp_path: Path) -> None:
    model, truth = model_of(name, tmp_path, torch.float32, "reference", "cpu")
    assert is_right(errors_of(model, truth, "cpu"), torch.float32)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("implementation", ["reference", "triton"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", names())
def test_logits_on_the_gpu(name: str, dtype: torch.dtype, implementation: str, tmp_path: Path) -> None:
    model, truth = model_of(name, tmp_path, dtype, implementation, "cuda")
    assert is_right(errors_of(model, truth, "cuda"), dtype)
