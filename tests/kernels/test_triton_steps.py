"""Ops that join several into one launch, against the references of those; and copies of units."""

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.kernels.triton_world import MARKS, on_device  # isort: skip  (before anything imports triton)
from plait_kernels.checksum_units import reference as checksum_reference
from plait_kernels.copy_units import reference as copy_reference
from plait_kernels.gdn_step import reference as gdn_reference
from plait_kernels.mamba2_step import reference as mamba2_reference
from plait_kernels.qk_rotary import reference as qk_reference
from plait_kernels.storage import Slots
from plait_kernels.triton_ops import IMPLEMENTATIONS, JOINED
from tests.kernels.scans import normal, seeded
from tests.kernels.world import LARGE, NAN, Memory

pytestmark = MARKS

STEPS = {name: on_device(op) for name, op in (JOINED | IMPLEMENTATIONS).items()}
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2}


@dataclass
class State:
    """Slots with a window and a matrix each, poison around them."""

    memory: Memory
    windows: Tensor
    matrices: Tensor
    slots: Slots

    @classmethod
    def of(
        cls, rows: int, window: tuple[int, ...], matrix: tuple[int, ...], poison: int, dtype: torch.dtype
    ) -> "State":
        aside = -(-math.prod(window) * dtype.itemsize // 128) * 128
        n_bytes = aside + math.prod(matrix) * 4
        memory = Memory((rows + 2) * (n_bytes + 512), poison)
        state = cls(
            memory,
            memory.view(window, dtype),
            memory.view(matrix, torch.float32, offset=aside),
            Slots(torch.tensor(memory.units(rows, n_bytes), dtype=torch.int32)),
        )
        random = seeded(3)
        for row in state.slots.rows.tolist():
            state.windows[row] = normal(random, *window).to(dtype)
            state.matrices[row] = normal(random, *matrix)
        return state


def agree(step: str, reference: Any, states: list[State], dtype: torch.dtype, args: Any, **options: Any) -> None:
    """Fused and composed give the same output, the same states, and leave all other bytes alone."""
    outs = []
    for op, state in zip((reference, STEPS[step]), states, strict=True):
        outs.append(op(*args, state.windows, state.matrices, state.slots, **options))
    assert outs[0].shape == outs[1].shape
    assert outs[1].dtype == dtype
    difference = (outs[0].double() - outs[1].double()).abs().max()
    assert float(difference) <= TOLERANCE[dtype] * max(1.0, float(outs[0].abs().max()))
    one, two = states
    for row in one.slots.rows.tolist():
        assert torch.equal(one.windows[row], two.windows[row])
        assert torch.allclose(one.matrices[row], two.matrices[row], atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
        two.matrices[row] = one.matrices[row]
    assert torch.equal(one.memory.bytes, two.memory.bytes), "wrote where it owns nothing"


@pytest.mark.parametrize("poison", [NAN, LARGE], ids=["nan", "large"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("key_heads", "per_key", "key_dim", "value_dim"), [(2, 2, 8, 16), (3, 1, 5, 7), (1, 3, 16, 8)])
def test_gdn_step_is_its_three_ops(
    poison: int, dtype: torch.dtype, key_heads: int, per_key: int, key_dim: int, value_dim: int
) -> None:
    heads, rows = key_heads * per_key, 3
    channels = 2 * key_heads * key_dim + heads * value_dim
    states = [State.of(rows, (channels, 3), (heads, key_dim, value_dim), poison, dtype) for _ in range(2)]
    random = seeded(1)
    wide = normal(random, rows, channels + heads * value_dim + 2 * heads).to(dtype)  # slices of one projection
    mixed, gate, b, a = wide.split([channels, heads * value_dim, heads, heads], dim=-1)
    weight, norm = normal(random, channels, 4).to(dtype), normal(random, value_dim).to(dtype)
    bias = normal(random, channels).to(dtype) if key_heads == 3 else None
    a_log, dt_bias = normal(random, heads), normal(random, heads)
    args = (mixed, gate, a, b, weight, bias, a_log, dt_bias, norm, 1e-6)
    agree("gdn_step", gdn_reference.gdn_step, states, dtype, args)


@pytest.mark.parametrize("poison", [NAN, LARGE], ids=["nan", "large"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("heads", "groups", "head_dim", "state_dim"), [(4, 1, 8, 16), (6, 2, 5, 7)])
def test_mamba2_step_is_its_three_ops(
    poison: int, dtype: torch.dtype, heads: int, groups: int, head_dim: int, state_dim: int
) -> None:
    rows, inner = 3, heads * head_dim
    channels = inner + 2 * groups * state_dim
    states = [State.of(rows, (channels, 3), (heads, head_dim, state_dim), poison, dtype) for _ in range(2)]
    random = seeded(1)
    gate, mixed, dt = normal(random, rows, inner + channels + heads).to(dtype).split([inner, channels, heads], dim=-1)
    weight, bias, norm = (normal(random, *size).to(dtype) for size in ((channels, 4), (channels,), (inner,)))
    a_log, d, dt_bias = (normal(random, heads) for _ in range(3))
    args = (mixed, gate, dt, weight, bias, a_log, d, dt_bias, norm, 1e-5)
    agree("mamba2_step", mamba2_reference.mamba2_step, states, dtype, args, dt_limit=(0.0, 2.0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("normed", "rotated"), [(True, True), (True, False), (False, True)])
def test_qk_rotary_is_its_two_ops(dtype: torch.dtype, normed: bool, rotated: bool) -> None:
    random = seeded(0)
    q, k = normal(random, 5, 9, 16).to(dtype)[:, 1:].split([6, 2], dim=1)
    weights = [normal(random, 16).to(dtype) if normed else None for _ in range(2)]
    positions = torch.tensor([0, 3, 7, 30, 2])
    angles = torch.arange(31)[:, None] * 10000.0 ** (-torch.arange(4) / 4)
    table = torch.cat((angles.cos(), angles.sin()), dim=-1) if rotated else None
    seen = STEPS["qk_rotary"](q, k, *weights, 1e-6, positions, table, offset=1.0)
    truth = qk_reference.qk_rotary(q, k, *weights, 1e-6, positions, table, offset=1.0)
    for one, two in zip(seen, truth, strict=True):
        assert float((one.double() - two.double()).abs().max()) <= TOLERANCE[dtype] * 4


@pytest.mark.parametrize("n_bytes", [8, 256, 776, 70_000])
def test_a_checksum_is_that_of_the_reference(n_bytes: int) -> None:
    memory = Memory(12 * (n_bytes + 512), NAN)
    units = torch.tensor(memory.units(5, n_bytes), dtype=torch.int32)
    memory.bytes[:] = torch.randint(0, 256, memory.bytes.shape, generator=seeded(0)).byte()
    seen = STEPS["checksum_units"](memory.bytes, units, n_bytes)
    assert int(seen) == int(checksum_reference.checksum_units(memory.bytes, units, n_bytes))


@pytest.mark.parametrize("n_bytes", [256, 776, 20480])
def test_copies_of_units_are_exact_and_touch_nothing_else(n_bytes: int) -> None:
    memory = Memory(12 * (n_bytes + 512), NAN)
    units = memory.units(10, n_bytes)
    memory.bytes[:] = torch.randint(0, 256, memory.bytes.shape, generator=seeded(0)).byte()
    sources, targets = (torch.tensor(part, dtype=torch.int32) for part in (units[:5], units[5:]))
    expected = memory.bytes.clone()
    copy_reference.copy_units(expected, sources, targets, n_bytes)
    STEPS["copy_units"](memory.bytes, sources, targets, n_bytes)
    assert torch.equal(memory.bytes, expected)
