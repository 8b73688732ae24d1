"""Triton's convolution and scans against the recurrence in fp64: a choice of cases that the interpreter can bear."""

import dataclasses

import pytest
import torch

from tests.kernels.triton_world import MARKS, triton_kernels  # isort: skip  (before anything imports triton)
from plait_kernels import tuning
from plait_kernels.segments import Room
from plait_kernels.select import Kernels
from tests.kernels import test_scans
from tests.kernels.scans import Conv, Delta, Scan, Ssd
from tests.kernels.test_scans import Stage
from tests.kernels.world import LARGE, NAN, Piece

pytestmark = MARKS

SCANS = {
    "conv": Conv(channels=12),
    "conv-odd": Conv(channels=5, width=3, biased=False, activation=None),
    "ssd": Ssd(heads=2, head_dim=8, groups=1, state=16),
    "ssd-odd": Ssd(heads=3, head_dim=5, groups=3, state=7),
    "delta": Delta(key_heads=1, value_heads=2, key_dim=8, value_dim=16),
    "delta-odd": Delta(key_heads=1, value_heads=3, key_dim=5, value_dim=7),
}
MIXED = [
    Piece(9, 70, cuts=(1, 3, 6, 66), emits=(0, 1, 2, 4)),
    Piece(4, 0),
    Piece(0, 5, cuts=(2,), emits=(0,)),
    Piece(3, 1),
]
"""Rows shorter than the convolution, longer than a block, a sequence without tokens, emitted states between."""


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    kernels = triton_kernels()
    assert isinstance(kernels, Kernels)
    return kernels


@pytest.fixture(params=SCANS.values(), ids=SCANS.keys())
def scan(request: pytest.FixtureRequest) -> Scan:
    assert isinstance(request.param, Scan)
    return request.param


@pytest.mark.parametrize("poison", [NAN, LARGE], ids=["nan", "large"])
def test_a_mixed_batch_equals_the_recurrence_and_writes_nothing_else(kernels: Kernels, scan: Scan, poison: int) -> None:
    stage = Stage(scan, [Piece(5, 1), Piece(0, 1)], MIXED, poison)
    stage.check(kernels, stage.inputs())


def test_a_step_with_room_for_more_gives_the_same(kernels: Kernels, scan: Scan) -> None:
    """As recorded steps have it: tables of a fixed size, whose rest names a sequence without tokens."""
    stage = Stage(scan, [Piece(5, 1), Piece(0, 1)], [*MIXED, Piece(0, 0)])
    stage.segments = dataclasses.replace(stage.segments, room=Room(len(stage.segments.chunks) + 3, 200))
    stage.check(kernels, stage.inputs())


def test_sixteen_bit_inputs_are_summed_in_fp32(kernels: Kernels, scan: Scan) -> None:
    stage = Stage(scan, [Piece(5, 1)], MIXED[:2])
    stage.check(kernels, stage.inputs(torch.bfloat16), tolerance=1e-2)


@pytest.mark.parametrize("name", ["ssd", "delta"])
def test_states_may_be_kept_in_sixteen_bits(kernels: Kernels, name: str) -> None:
    scan = SCANS[name]
    stage = Stage(scan, [Piece(5, 1)], [Piece(3, 9, cuts=(4,), emits=(0,))])
    try:
        type(scan).state_dtype = torch.bfloat16
        stage = Stage(scan, [Piece(5, 1)], [Piece(3, 9, cuts=(4,), emits=(0,))])
        stage.check(kernels, stage.inputs(), tolerance=2e-2)
    finally:
        type(scan).state_dtype = torch.float32


@pytest.mark.parametrize("length", [1, 2, 3, 4, 31, 32, 33, 63, 64, 65])
@pytest.mark.parametrize("name", ["conv", "ssd-odd", "delta-odd"])
def test_every_edge_length_is_exact(kernels: Kernels, name: str, length: int) -> None:
    stage = Stage(SCANS[name], [], [Piece(3, length)])
    stage.check(kernels, stage.inputs())


@pytest.mark.parametrize("name", ["conv", "ssd", "delta"])
def test_padded_decodes_share_a_reserved_row_and_harm_no_one(kernels: Kernels, name: str) -> None:
    test_scans.test_padded_decodes_share_a_reserved_row_and_harm_no_one(kernels, SCANS[name], NAN)


def test_huge_decays_neither_overflow_nor_lose_small_ones(kernels: Kernels) -> None:
    scan = Ssd(heads=3, groups=1, dt_scale=60.0)
    scan.a_log = torch.linspace(-6, 5, scan.heads)
    stage = Stage(scan, [Piece(1, 1)], [Piece(0, 70)])
    stage.check(kernels, stage.inputs())


def test_dt_is_clamped(kernels: Kernels) -> None:
    scan = Ssd(heads=2, groups=1, dt_limit=(0.5, 1.5))
    stage = Stage(scan, [Piece(1, 1)], [Piece(0, 9)])
    stage.check(kernels, stage.inputs())


def test_views_into_a_projection_are_taken_as_they_are(kernels: Kernels) -> None:
    test_scans.test_views_into_a_projection_are_taken_as_they_are(kernels)


def test_alike_keys_do_not_spoil_the_triangular_system(kernels: Kernels) -> None:
    """Equal keys, full steps, hardly any decay: powers of the system would reach 1e18 in a block of 64."""
    scan = Delta(key_heads=1, value_heads=1, key_dim=8, value_dim=16)
    scan.a_log = torch.full_like(scan.a_log, -9.0)
    stage = Stage(scan, [], [Piece(0, 64)])
    inputs = stage.inputs()
    inputs["k"] = inputs["k"][:1].expand_as(inputs["k"]).contiguous()
    inputs["b"] = torch.full_like(inputs["b"], 9.0)
    stage.check(kernels, inputs)


@pytest.mark.parametrize(
    ("tunable", "config", "name"),
    [
        ("gdn_turned_block", {"BLOCK": 32}, "delta"),
        ("gdn_turned_scan", {"V": 16}, "delta"),
        ("gdn_step", {"V": 8}, "delta"),
        ("ssd_parallel_block", {"BLOCK": 32}, "ssd"),
        ("ssd_parallel_states", {"N": 16}, "ssd"),
        ("ssd_step", {"P": 4}, "ssd"),
        ("conv_tiles", {"TOKENS": 16, "BLOCK": 8}, "conv"),
        ("conv_step", {"BLOCK": 4}, "conv"),
    ],
)
def test_other_configurations_compute_the_same(
    kernels: Kernels, tunable: str, config: tuning.Config, name: str
) -> None:
    stage = Stage(SCANS[name], [Piece(5, 1)], [Piece(9, 37, cuts=(33,), emits=(0,))])
    with tuning.tunables()[tunable].use(config):
        stage.check(kernels, stage.inputs())
