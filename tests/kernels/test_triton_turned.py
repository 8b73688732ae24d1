"""The gated delta rule with a turned state against the recurrence in fp64, and its promises to the bit."""

from collections.abc import Iterator

import pytest
import torch

from tests.kernels.triton_world import MARKS, triton_kernels  # isort: skip  (before anything imports triton)
from plait_kernels.gated_delta_rule import turned
from plait_kernels.select import Kernels
from tests.kernels.promises import nothing_of_others_reaches_a_sequence, room_for_more_changes_nothing
from tests.kernels.scans import Delta
from tests.kernels.test_scans import Stage
from tests.kernels.test_triton_scans import MIXED
from tests.kernels.world import LARGE, NAN, Piece

pytestmark = MARKS

SHAPES = {"even": Delta(1, 2, 8, 16), "odd": Delta(1, 3, 5, 7)}


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    kernels = triton_kernels()
    assert isinstance(kernels, Kernels)
    return kernels


@pytest.fixture(params=[32, 64])
def block(request: pytest.FixtureRequest) -> Iterator[int]:
    with turned.BLOCK.use({"BLOCK": request.param}):
        yield request.param


@pytest.fixture(params=SHAPES.values(), ids=SHAPES.keys())
def shape(request: pytest.FixtureRequest) -> Delta:
    assert isinstance(request.param, Delta)
    return request.param


@pytest.mark.parametrize("poison", [NAN, LARGE], ids=["nan", "large"])
@pytest.mark.usefixtures("block")
def test_a_mixed_batch_equals_the_recurrence_and_writes_nothing_else(
    kernels: Kernels, shape: Delta, poison: int
) -> None:
    stage = Stage(shape, [Piece(5, 1), Piece(0, 1)], MIXED, poison)
    stage.check(kernels, stage.inputs())


@pytest.mark.usefixtures("block")
def test_sixteen_bit_inputs_are_summed_in_fp32(kernels: Kernels, shape: Delta) -> None:
    stage = Stage(shape, [Piece(5, 1)], MIXED[:2])
    stage.check(kernels, stage.inputs(torch.bfloat16), tolerance=1e-2)


@pytest.mark.usefixtures("block")
def test_states_may_be_kept_in_sixteen_bits(kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Delta, "state_dtype", torch.bfloat16)
    stage = Stage(SHAPES["even"], [Piece(5, 1)], [Piece(3, 9, cuts=(4,), emits=(0,))])
    stage.check(kernels, stage.inputs(), tolerance=2e-2)


@pytest.mark.parametrize("around", [-1, 0, 1])
def test_edge_lengths_are_exact(kernels: Kernels, block: int, around: int) -> None:
    stage = Stage(SHAPES["odd"], [], [Piece(3, block + around), Piece(0, 2 * block + around), Piece(1, 2)])
    stage.check(kernels, stage.inputs())


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-5), (torch.bfloat16, 2e-2)], ids=["fp32", "bf16"])
@pytest.mark.usefixtures("block")
def test_alike_keys_do_not_spoil_the_triangular_system(kernels: Kernels, dtype: torch.dtype, tolerance: float) -> None:
    """Equal keys, full steps, hardly any decay: powers of the system would reach 1e18 in a block of 64."""
    shape = Delta(key_heads=1, value_heads=1, key_dim=8, value_dim=16)
    shape.a_log = torch.full_like(shape.a_log, -9.0)
    stage = Stage(shape, [], [Piece(0, 64)])
    inputs = stage.inputs(dtype)
    inputs["k"] = inputs["k"][:1].expand_as(inputs["k"]).contiguous()
    inputs["b"] = torch.full_like(inputs["b"], 9.0)
    stage.check(kernels, inputs, tolerance)


@pytest.mark.usefixtures("block")
def test_what_others_bring_does_not_reach_a_sequence(kernels: Kernels) -> None:
    nothing_of_others_reaches_a_sequence(kernels, SHAPES["even"])


@pytest.mark.usefixtures("block")
def test_a_step_with_room_for_more_gives_the_same_bits(kernels: Kernels) -> None:
    room_for_more_changes_nothing(kernels, SHAPES["odd"], MIXED)
