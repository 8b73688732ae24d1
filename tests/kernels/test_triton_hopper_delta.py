"""Where Hopper's scan of the gated delta rule is asked for and does not suit, Triton's does the work."""

import pytest
import torch

from tests.kernels.triton_world import MARKS, triton_kernels  # isort: skip  (before anything imports triton)
from plait_kernels.gated_delta_rule import hopper, turned
from tests.kernels.scans import Delta
from tests.kernels.test_scans import Stage
from tests.kernels.world import Piece

pytestmark = MARKS


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_heads_of_another_size_are_left_to_triton(dtype: torch.dtype) -> None:
    stage = Stage(Delta(1, 2, 8, 16), [], [Piece(3, 40)])
    with turned.HOPPER.use({"GROUPS": 1}):
        stage.check(triton_kernels(), stage.inputs(dtype), tolerance=1e-2)


def rows(tokens: int, heads: int, pad: int = 0, shift: int = 0) -> torch.Tensor:
    """bf16 ``[tokens, heads, 128]`` that begins ``shift`` elements behind an aligned address."""
    row = heads * 128 + pad
    flat = torch.zeros(tokens * row + shift, dtype=torch.bfloat16)
    return flat[shift:].view(tokens, row)[:, : heads * 128].view(tokens, heads, 128)


def test_only_rows_that_the_copy_engine_can_fetch_suit() -> None:
    good, out = rows(3, 2), rows(3, 4)
    assert hopper.suits(good, rows(3, 2, pad=8), out)
    assert not hopper.suits(good, rows(3, 2, pad=4), out), "rows that begin at no multiple of 16 bytes"
    assert not hopper.suits(good, rows(3, 2, shift=4), out), "the same of the first row"
    assert not hopper.suits(good, rows(2, 3).transpose(0, 1), out), "heads that are not side by side"
    assert not hopper.suits(*(x.float() for x in (good, good, out))), "numbers of four bytes"
    assert not hopper.suits(good[..., :64], good[..., :64], out), "keys of another size"
