"""Triton's paged attention against a dense sum in fp64: a choice of cases that the interpreter can bear."""

import dataclasses

import pytest
import torch

from tests.kernels.triton_world import MARKS, triton_kernels  # isort: skip  (before anything imports triton)
from plait_kernels.paged_attention import triton_decode, triton_prefill
from plait_kernels.segments import Room
from plait_kernels.select import Kernels
from tests.kernels import test_paged_attention
from tests.kernels.test_paged_attention import RULES, SHAPES, Rule, Shape, Stage
from tests.kernels.world import LARGE, NAN, Piece

pytestmark = MARKS

DECODES = [Piece(n - 1, 1) for n in (1, 4, 5, 9, 33, 70)]


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    kernels = triton_kernels()
    assert isinstance(kernels, Kernels)
    return kernels


@pytest.fixture(params=RULES.values(), ids=RULES.keys())
def rule(request: pytest.FixtureRequest) -> Rule:
    assert isinstance(request.param, dict)
    return request.param


@pytest.mark.parametrize("poison", [NAN, LARGE], ids=["nan", "large"])
def test_decodes_equal_the_dense_sum_whatever_lies_beside(kernels: Kernels, rule: Rule, poison: int) -> None:
    Stage(Shape(), rule, DECODES, [], poison).check(kernels)


@pytest.mark.parametrize("parts", [1, 3])
def test_histories_split_into_parts_give_what_whole_ones_give(kernels: Kernels, rule: Rule, parts: int) -> None:
    with triton_decode.DECODE.use({"KEYS": 16, "PROGRAMS": parts * 3}):  # the interpreter counts as 4 multiprocessors
        Stage(Shape(), rule, [Piece(69, 1), Piece(2, 1)], []).check(kernels)


@pytest.mark.parametrize("name", SHAPES)
def test_every_shape_of_heads_is_exact(kernels: Kernels, name: str) -> None:
    longer = [Piece(13, 7), Piece(4, 0), Piece(0, 18)]
    Stage(SHAPES[name], RULES["full"], [Piece(8, 1)], longer).check(kernels)


def test_prefill_chunks_equal_the_dense_sum(kernels: Kernels, rule: Rule) -> None:
    Stage(Shape(), rule, [], [Piece(0, 9), Piece(21, 40), Piece(5, 1)]).check(kernels)


def test_a_step_with_room_for_more_gives_the_same(kernels: Kernels, rule: Rule) -> None:
    """As recorded steps have it: tables of a fixed size, whose rest names a sequence without tokens."""
    stage = Stage(Shape(), rule, [Piece(4, 1)], [Piece(0, 9), Piece(21, 20), Piece(0, 0)])
    stage.segments = dataclasses.replace(stage.segments, room=Room(9, 300))
    stage.check(kernels)


def test_long_histories_of_short_chunks_are_split(
    kernels: Kernels, rule: Rule, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton_prefill, "LEAST_PART", 8)
    with triton_prefill.PREFILL.use({"KEYS": 16}):
        Stage(Shape(), rule, [], [Piece(60, 5)]).check(kernels)


@pytest.mark.parametrize("length", [1, 2, 4, 5, 7, 8, 9, 15, 16, 17, 63, 64, 65])
@pytest.mark.parametrize("name", ["full", "window"])
def test_every_edge_length_is_exact(kernels: Kernels, length: int, name: str) -> None:
    with triton_prefill.PREFILL.use({"ROWS": 16, "KEYS": 16}):
        Stage(Shape(), RULES[name], [Piece(length - 1, 1)], [Piece(length, 3), Piece(0, min(length, 17))]).check(
            kernels
        )


@pytest.mark.parametrize("name", ["gqa", "value-wider"])
def test_sixteen_bit_entries_are_summed_in_fp32(kernels: Kernels, name: str) -> None:
    Stage(SHAPES[name], {}, [Piece(40, 1)], [Piece(9, 20)], LARGE, torch.bfloat16).check(kernels, tolerance=2e-2)


def test_padded_decodes_write_only_the_reserved_page(kernels: Kernels) -> None:
    test_paged_attention.test_padded_decodes_write_only_the_reserved_page(kernels)


def test_heads_may_be_slices_of_one_projection(kernels: Kernels) -> None:
    test_paged_attention.test_heads_may_be_slices_of_one_projection(kernels)
