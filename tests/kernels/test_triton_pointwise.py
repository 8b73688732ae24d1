"""Triton's norms, gates, rotary, linear and experts: the tests of the references, run again."""

import pytest
import torch

from tests.kernels.triton_world import MARKS, triton_kernels  # isort: skip  (before anything imports triton)
from plait_kernels.gated_activation import Kind
from plait_kernels.linear.triton import LINEAR
from plait_kernels.select import Kernels
from tests.kernels import test_pointwise
from tests.kernels.test_pointwise import (  # noqa: F401  (collected here)
    test_a_norm_before_the_sum_equals_that_norm_by_itself,
    test_add_rms_norm_equals_its_two_halves,
    test_experts_are_summed_with_their_weights,
    test_gated_activation_takes_halves_of_one_tensor,
    test_gated_rms_norm_normalises_groups,
    test_gates_far_from_zero_saturate,
    test_linear_takes_rows_of_a_wider_tensor,
    test_ops_take_no_tokens_at_all,
    test_rms_norm_scales_to_unit_mean_square,
    test_rms_norm_takes_heads_that_are_slices,
    test_rotary_turns_pairs_of_halves,
)

pytestmark = MARKS


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    kernels = triton_kernels()
    assert isinstance(kernels, Kernels)
    return kernels


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    assert isinstance(request.param, torch.dtype)
    return request.param


@pytest.mark.parametrize("rows", [1, 7, 33, 70])
@pytest.mark.parametrize(("outs", "ins"), [(37, 20), (1, 1), (130, 321)])
def test_linear_equals_the_product(kernels: Kernels, dtype: torch.dtype, rows: int, outs: int, ins: int) -> None:
    test_pointwise.test_linear_equals_the_product(kernels, dtype, rows, outs, ins)


@pytest.mark.parametrize("split", [2, 3])
def test_linear_adds_its_parts_in_order(kernels: Kernels, dtype: torch.dtype, split: int) -> None:
    with LINEAR.use({"SPLIT": split, "INS": 64, "OUTS": 16}):
        test_pointwise.test_linear_equals_the_product(kernels, dtype, 3, 40, 321)


@pytest.mark.parametrize("kind", ["silu", "gelu_tanh"])
def test_one_expert_takes_all(kernels: Kernels, kind: Kind) -> None:
    """Blocks of one expert follow one another, and experts without tokens take none."""
    x = torch.randn(40, 16, generator=torch.Generator().manual_seed(0))
    gate_up = torch.randn(6, 24, 16, generator=torch.Generator().manual_seed(1))
    down = torch.randn(6, 16, 12, generator=torch.Generator().manual_seed(2))
    ids, weights = torch.full((40, 1), 4), torch.ones(40, 1)
    from plait_kernels.moe.reference import moe

    seen = kernels.moe(x, ids, weights, gate_up, down, activation=kind)
    assert torch.allclose(seen, moe(x, ids, weights, gate_up, down, activation=kind), atol=1e-4)
