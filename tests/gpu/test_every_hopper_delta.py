"""Hopper's scan of the gated delta rule against the recurrence in fp64, and its promises to the bit."""

from collections.abc import Iterator

import pytest
import torch

if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
    pytest.skip("needs an NVIDIA GPU of compute capability 9.0", allow_module_level=True)

from plait_kernels.gated_delta_rule import turned, turned_kernels
from plait_kernels.select import Kernels
from tests.kernels.promises import nothing_of_others_reaches_a_sequence, room_for_more_changes_nothing
from tests.kernels.scans import Delta
from tests.kernels.test_scans import Stage
from tests.kernels.test_triton_scans import MIXED
from tests.kernels.triton_world import triton_kernels
from tests.kernels.world import LARGE, NAN, Piece

pytestmark = pytest.mark.gpu

SHAPES = {"pair": Delta(2, 4, 128, 128), "triple": Delta(1, 3, 128, 128)}
CONFIGS = [(32, 1, 2), (32, 1, 3), (32, 1, 6), (32, 2, 4), (64, 1, 2), (64, 1, 3), (64, 2, 2)]
"""Tokens of a block, groups of values, blocks in shared memory."""
TOLERANCE = 2e-2


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    kernels = triton_kernels()
    assert isinstance(kernels, Kernels)
    return kernels


@pytest.fixture(params=CONFIGS, ids=lambda config: "-".join(map(str, config)), autouse=True)
def config(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What does not suit would be another kernel's and must fail here."""
    monkeypatch.setattr(turned_kernels, "_gdn_turned_scan", None)
    block, groups, stages = request.param
    with turned.BLOCK.use({"BLOCK": block}), turned.HOPPER.use({"GROUPS": groups, "STAGES": stages}):
        yield


@pytest.fixture(params=SHAPES.values(), ids=SHAPES.keys())
def shape(request: pytest.FixtureRequest) -> Delta:
    assert isinstance(request.param, Delta)
    return request.param


@pytest.mark.parametrize("poison", [NAN, LARGE], ids=["nan", "large"])
def test_a_mixed_batch_equals_the_recurrence_and_writes_nothing_else(
    kernels: Kernels, shape: Delta, poison: int
) -> None:
    stage = Stage(shape, [Piece(5, 1), Piece(0, 1)], MIXED, poison)
    stage.check(kernels, stage.inputs(torch.bfloat16), TOLERANCE)


def test_lengths_around_blocks_and_rounds_of_the_ring_are_exact(kernels: Kernels, shape: Delta) -> None:
    lengths = (1, 2, 31, 32, 33, 63, 64, 65, 127, 128, 129, 191, 192, 193, 400)
    stage = Stage(shape, [], [Piece(3, length) for length in lengths])
    stage.check(kernels, stage.inputs(torch.bfloat16), TOLERANCE)


def test_states_may_be_kept_in_sixteen_bits(kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Delta, "state_dtype", torch.bfloat16)
    stage = Stage(SHAPES["pair"], [Piece(5, 1)], [Piece(3, 90, cuts=(40,), emits=(0,))])
    stage.check(kernels, stage.inputs(torch.bfloat16), TOLERANCE)


def test_what_others_bring_does_not_reach_a_sequence(kernels: Kernels, shape: Delta) -> None:
    nothing_of_others_reaches_a_sequence(kernels, shape)


def test_a_step_with_room_for_more_gives_the_same_bits(kernels: Kernels, shape: Delta) -> None:
    room_for_more_changes_nothing(kernels, shape, MIXED)
