"""The scan of Mamba-2 with all blocks side by side against the recurrence in fp64, and its promises to the bit."""

from collections.abc import Iterator

import pytest
import torch

from tests.kernels.triton_world import MARKS, triton_kernels  # isort: skip  (before anything imports triton)
from plait_kernels.select import Kernels
from plait_kernels.ssd import parallel
from tests.kernels.promises import nothing_of_others_reaches_a_sequence, outcome, room_for_more_changes_nothing
from tests.kernels.scans import Ssd
from tests.kernels.test_scans import Stage
from tests.kernels.test_triton_scans import MIXED
from tests.kernels.world import LARGE, NAN, Piece

pytestmark = MARKS

SHAPES = {
    "even": Ssd(heads=4, head_dim=8, groups=2, state=16),
    "odd": Ssd(heads=3, head_dim=5, groups=3, state=7),
    "uneven": Ssd(heads=6, head_dim=20, groups=2, state=40),  # padded columns are a part of their own
}


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    kernels = triton_kernels()
    assert isinstance(kernels, Kernels)
    return kernels


@pytest.fixture(params=[(32, 16), (64, 64)], ids=["32", "64"])
def block(request: pytest.FixtureRequest) -> Iterator[int]:
    """Blocks of so many tokens, in one tile of rows or in two."""
    size, rows = request.param
    blocks, outputs = parallel.BLOCK.use({"BLOCK": size}), parallel.OUTPUTS.use({"ROWS": rows})
    with parallel.STATES.use({"N": 16}), blocks, outputs:
        yield size


@pytest.fixture(params=SHAPES.values(), ids=SHAPES.keys())
def shape(request: pytest.FixtureRequest) -> Ssd:
    assert isinstance(request.param, Ssd)
    return request.param


@pytest.mark.parametrize("poison", [NAN, LARGE], ids=["nan", "large"])
@pytest.mark.usefixtures("block")
def test_a_mixed_batch_equals_the_recurrence_and_writes_nothing_else(kernels: Kernels, shape: Ssd, poison: int) -> None:
    stage = Stage(shape, [Piece(5, 1), Piece(0, 1)], MIXED, poison)
    stage.check(kernels, stage.inputs())


@pytest.mark.usefixtures("block")
def test_sixteen_bit_inputs_are_summed_in_fp32(kernels: Kernels, shape: Ssd) -> None:
    stage = Stage(shape, [Piece(5, 1)], MIXED[:2])
    stage.check(kernels, stage.inputs(torch.bfloat16), tolerance=1e-2)


@pytest.mark.usefixtures("block")
def test_states_may_be_kept_in_sixteen_bits(kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ssd, "state_dtype", torch.bfloat16)
    stage = Stage(SHAPES["even"], [Piece(5, 1)], [Piece(3, 9, cuts=(4,), emits=(0,))])
    stage.check(kernels, stage.inputs(), tolerance=2e-2)


@pytest.mark.parametrize("around", [-1, 0, 1])
def test_edge_lengths_are_exact(kernels: Kernels, block: int, around: int) -> None:
    stage = Stage(SHAPES["odd"], [], [Piece(3, block + around), Piece(0, 2 * block + around), Piece(1, 2)])
    stage.check(kernels, stage.inputs())


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-5), (torch.bfloat16, 1e-2)], ids=["fp32", "bf16"])
@pytest.mark.usefixtures("block")
def test_huge_decays_neither_overflow_nor_lose_small_ones(
    kernels: Kernels, dtype: torch.dtype, tolerance: float
) -> None:
    scan = Ssd(heads=3, groups=1, dt_scale=60.0)
    scan.a_log = torch.linspace(-6, 5, scan.heads)
    stage = Stage(scan, [Piece(1, 1)], [Piece(0, 70)])
    stage.check(kernels, stage.inputs(dtype), tolerance)


@pytest.mark.parametrize("limit", [(0.5, 1.5), (0.0, 0.0)], ids=["between", "none"])
@pytest.mark.usefixtures("block")
def test_dt_is_clamped(kernels: Kernels, limit: tuple[float, float]) -> None:
    """To nothing as well, which has no logarithm."""
    stage = Stage(Ssd(heads=2, groups=1, dt_limit=limit), [Piece(1, 1)], [Piece(0, 9)])
    stage.check(kernels, stage.inputs())


@pytest.mark.usefixtures("block")
def test_what_others_bring_does_not_reach_a_sequence(kernels: Kernels, shape: Ssd) -> None:
    nothing_of_others_reaches_a_sequence(kernels, shape)


@pytest.mark.usefixtures("block")
def test_a_step_with_room_for_more_gives_the_same_bits(kernels: Kernels, shape: Ssd) -> None:
    room_for_more_changes_nothing(kernels, shape, MIXED)


@pytest.mark.parametrize("heads", [1, 2, 3])
def test_how_many_heads_a_program_takes_changes_no_bit(
    kernels: Kernels, heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes fewer where the GPU would not be full else, which depends on all that is in the step."""
    stage = Stage(SHAPES["uneven"], [], [Piece(2, 70)])
    inputs, before = stage.inputs(torch.bfloat16), stage.memory.bytes.clone()
    expected, state = outcome(kernels, stage, inputs)
    stage.memory.bytes.copy_(before)
    monkeypatch.setattr(parallel, "_most_heads", lambda *_: heads)
    out, after = outcome(kernels, stage, inputs)
    assert torch.equal(out, expected)
    assert torch.equal(after, state)
