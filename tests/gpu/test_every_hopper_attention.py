"""Hopper's prefill attention against a dense sum in fp64, at the shapes that it takes."""

import dataclasses
import itertools

import pytest
import torch

if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
    pytest.skip("needs an NVIDIA GPU of compute capability 9.0", allow_module_level=True)

from plait_kernels.paged_attention import hopper, triton_prefill
from plait_kernels.paged_attention.triton_prefill import run_prefill
from plait_kernels.segments import Room
from plait_kernels.select import Kernels
from tests.kernels.test_paged_attention import Rule, Shape, Stage
from tests.kernels.triton_world import on_device, triton_kernels
from tests.kernels.world import LARGE, NAN, Piece

pytestmark = pytest.mark.gpu

SHAPES = {
    "head-256": Shape(heads=4, kv_heads=2, dim=256, value_dim=256, page=16),
    "head-128": Shape(heads=3, kv_heads=3, dim=128, value_dim=128, page=16),
    "head-64": Shape(heads=5, kv_heads=1, dim=64, value_dim=64, page=16),
}
RULES: dict[str, Rule] = {"full": {}, "window": {"window": 8}, "wide-window": {"window": 100}}
TOLERANCE = 2e-2


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    kernels = dataclasses.replace(triton_kernels(), paged_attention=on_device(hopper.paged_attention))
    assert isinstance(kernels, Kernels)
    return kernels


@pytest.fixture(params=SHAPES.values(), ids=SHAPES.keys())
def shape(request: pytest.FixtureRequest) -> Shape:
    assert isinstance(request.param, Shape)
    return request.param


@pytest.fixture(params=RULES.values(), ids=RULES.keys())
def rule(request: pytest.FixtureRequest) -> Rule:
    assert isinstance(request.param, dict)
    return request.param


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """However few tiles there are; what does not suit would be another kernel's and must fail here."""
    monkeypatch.setattr(hopper, "multiprocessors", lambda _: 1)
    monkeypatch.setattr(triton_prefill, "run_prefill", None)


@pytest.mark.parametrize("poison", [NAN, LARGE], ids=["nan", "large"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def test_pieces_equal_the_dense_sum_whatever_lies_beside(
    kernels: Kernels, shape: Shape, rule: Rule, dtype: torch.dtype, poison: int
) -> None:
    longer = [Piece(0, 19), Piece(13, 7), Piece(21, 170), Piece(5, 1), Piece(160, 160), Piece(4, 0)]
    Stage(shape, rule, [Piece(40, 1)], longer, poison, dtype).check(kernels, TOLERANCE)


def test_every_length_up_to_a_page_and_around_a_tile_is_exact(kernels: Kernels, shape: Shape, rule: Rule) -> None:
    lengths = [*range(1, 18), 31, 32, 33, 63, 64, 65, 127, 128, 129]
    longer = [Piece(history, new) for new, history in itertools.product(lengths, (0, 77))]
    Stage(shape, rule, [], longer, dtype=torch.bfloat16).check(kernels, TOLERANCE)


@pytest.mark.parametrize("dim", hopper.TUNABLES)
def test_every_configuration_gives_the_same(kernels: Kernels, dim: int) -> None:
    shape = Shape(heads=8, kv_heads=2, dim=dim, value_dim=dim, page=16)
    for config in hopper.TUNABLES[dim].options:
        with hopper.TUNABLES[dim].use(config):
            Stage(shape, {}, [], [Piece(300, 400), Piece(0, 5)], dtype=torch.bfloat16).check(kernels, TOLERANCE)


def test_a_step_with_room_for_more_gives_the_same(kernels: Kernels, shape: Shape, rule: Rule) -> None:
    stage = Stage(shape, rule, [], [Piece(0, 9), Piece(21, 200), Piece(0, 0)], dtype=torch.bfloat16)
    stage.segments = dataclasses.replace(stage.segments, room=Room(9, 300))
    stage.check(kernels, TOLERANCE)


def test_what_it_does_not_know_is_left_to_triton(kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_prefill, "run_prefill", run_prefill)
    for rule in ({"softcap": 3.0}, {"sinks": True}):
        Stage(SHAPES["head-64"], rule, [], [Piece(3, 60)], dtype=torch.bfloat16).check(kernels, TOLERANCE)
    Stage(Shape(), {}, [], [Piece(3, 60)]).check(kernels)
