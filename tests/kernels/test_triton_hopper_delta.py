"""Hopper's scan of the gated delta rule, its warps played by threads; and what it leaves to Triton's scan."""

from collections.abc import Iterator

import pytest
import torch

from tests.kernels.triton_world import GPU, MARKS, triton_kernels  # isort: skip  (before anything imports triton)
from plait_kernels.gated_delta_rule import hopper, hopper_kernels, turned, turned_kernels
from plait_kernels.select import Kernels
from tests.kernels.gluon_threads import in_threads
from tests.kernels.promises import nothing_of_others_reaches_a_sequence, room_for_more_changes_nothing
from tests.kernels.scans import Delta
from tests.kernels.test_scans import Stage
from tests.kernels.test_triton_scans import MIXED
from tests.kernels.world import LARGE, NAN, Piece

pytestmark = MARKS

SHAPE = Delta(1, 2, 128, 128)
TOLERANCE = 2e-2


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    kernels = triton_kernels()
    assert isinstance(kernels, Kernels)
    return kernels


@pytest.fixture(params=[(32, 1, 2), (64, 1, 3), (64, 2, 2)], ids=lambda config: "-".join(map(str, config)))
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """By tokens of a block, groups, stages. On a GPU ``tests/gpu`` has the same with the kernel itself."""
    if GPU:
        pytest.skip("the kernel itself runs here")
    monkeypatch.setattr(turned_kernels, "_gdn_turned_scan", None)
    block, groups, stages = request.param
    config = {"GROUPS": groups, "STAGES": stages}
    with in_threads(hopper_kernels, "_gdn_hopper_scan"), turned.BLOCK.use({"BLOCK": block}), turned.HOPPER.use(config):
        yield


@pytest.mark.parametrize("poison", [NAN, LARGE], ids=["nan", "large"])
@pytest.mark.usefixtures("threads")
def test_a_mixed_batch_equals_the_recurrence_and_writes_nothing_else(kernels: Kernels, poison: int) -> None:
    stage = Stage(SHAPE, [Piece(5, 1), Piece(0, 1)], MIXED, poison)
    stage.check(kernels, stage.inputs(torch.bfloat16), TOLERANCE)


@pytest.mark.usefixtures("threads")
def test_rounds_of_the_ring_follow_one_another(kernels: Kernels) -> None:
    stage = Stage(SHAPE, [], [Piece(3, 64), Piece(2, 417, cuts=(130,), emits=(0,))])
    stage.check(kernels, stage.inputs(torch.bfloat16), TOLERANCE)


@pytest.mark.usefixtures("threads")
def test_states_may_be_kept_in_sixteen_bits(kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Delta, "state_dtype", torch.bfloat16)
    stage = Stage(SHAPE, [], [Piece(3, 90, cuts=(40,), emits=(0,))])
    stage.check(kernels, stage.inputs(torch.bfloat16), TOLERANCE)


@pytest.mark.usefixtures("threads")
def test_what_others_bring_does_not_reach_a_sequence(kernels: Kernels) -> None:
    nothing_of_others_reaches_a_sequence(kernels, SHAPE)


@pytest.mark.usefixtures("threads")
def test_a_step_with_room_for_more_gives_the_same_bits(kernels: Kernels) -> None:
    room_for_more_changes_nothing(kernels, SHAPE, MIXED)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_heads_of_another_size_are_left_to_triton(kernels: Kernels, dtype: torch.dtype) -> None:
    stage = Stage(Delta(1, 2, 8, 16), [], [Piece(3, 40)])
    with turned.HOPPER.use({"GROUPS": 1}):
        stage.check(kernels, stage.inputs(dtype), tolerance=1e-2)


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
