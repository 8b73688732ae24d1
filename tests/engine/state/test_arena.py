"""Granule-indexed views of one allocation."""

import pytest
import torch

from plait_engine.state.arena import Arena
from plait_engine.state.spec import GRANULE_BYTES, Granule, PagedSpec, SlotSpec, TensorSpec, group_specs

FULL = PagedSpec("full_attention", (TensorSpec("k", (2, 16), torch.bfloat16), TensorSpec("v", (2, 16), torch.bfloat16)))
MAMBA = SlotSpec("mamba2", (TensorSpec("conv", (5, 3), torch.bfloat16), TensorSpec("ssm", (3, 4, 4), torch.float32)))
GROUPS = group_specs(((FULL,), (MAMBA,), (FULL,)), page_size=4)


def test_tensors_of_all_layers_of_a_unit_do_not_overlap() -> None:
    arena = Arena(GRANULE_BYTES * 64, torch.device("cpu"))
    arena.bytes.zero_()
    paged, slotted = GROUPS
    marks = []
    for index in range(2):
        for name in ("k", "v"):
            view = arena.view(paged, index, name)
            view[8] = len(marks) + 1
            marks.append(view)
    for name in ("conv", "ssm"):
        view = arena.view(slotted, 0, name)
        view[40] = len(marks) + 1
        marks.append(view)
    for i, view in enumerate(marks):
        unit = 8 if i < 4 else 40
        assert bool((view[unit] == i + 1).all())


def test_a_view_reaches_the_last_unit_and_stays_inside() -> None:
    paged = GROUPS[0]
    units = paged.unit_bytes // GRANULE_BYTES
    arena = Arena(GRANULE_BYTES * units * 3, torch.device("cpu"))
    view = arena.view(paged, 1, "v")
    view[units * 2] = 1.0
    with pytest.raises(IndexError):
        view[units * 2 + units]


def test_writing_by_index_touches_only_the_named_units() -> None:
    paged = GROUPS[0]
    arena = Arena(GRANULE_BYTES * 64, torch.device("cpu"))
    arena.bytes.fill_(0xFF)
    arena.view(paged, 0, "k")[torch.tensor([0, 16]), torch.tensor([1, 3])] = torch.ones(2, 2, 16, dtype=torch.bfloat16)
    changed = (arena.bytes != 0xFF).nonzero().flatten()
    assert set((changed // paged.unit_bytes).tolist()) == {0, 16 * GRANULE_BYTES // paged.unit_bytes}
    assert len(changed) == 2 * 2 * 16 * 2


def test_a_unit_can_be_read_as_raw_bytes() -> None:
    arena = Arena(GRANULE_BYTES * 4, torch.device("cpu"))
    arena.bytes.zero_()
    arena.unit(Granule(2), 256).fill_(7)
    assert arena.bytes.nonzero().flatten().tolist() == list(range(512, 768))


@pytest.mark.parametrize("n_bytes", [0, -256, 300])
def test_an_arena_that_is_no_multiple_of_a_granule_is_refused(n_bytes: int) -> None:
    with pytest.raises(ValueError, match="multiple"):
        Arena(n_bytes, torch.device("cpu"))
