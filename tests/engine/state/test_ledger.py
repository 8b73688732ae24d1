"""Reservations take everything or nothing, and the books always add up."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from plait_engine.state.arena import Arena
from plait_engine.state.ledger import Ledger, Poison, Units
from plait_engine.state.pools import StateBug, choose_slab_bytes
from plait_engine.state.spec import Granule, GroupId, PagedSpec, SlotSpec, TensorSpec, group_specs

FULL = PagedSpec("full_attention", (TensorSpec("k", (2, 16), torch.bfloat16), TensorSpec("v", (2, 16), torch.bfloat16)))
WINDOW = PagedSpec("sliding_attention", FULL.tensors, window=8)
MAMBA = SlotSpec("mamba2", (TensorSpec("ssm", (3, 8, 8), torch.float32),))
GROUPS = group_specs(((FULL,), (MAMBA,), (WINDOW,), (MAMBA,)), page_size=4)
PAGES, SLOT, WINDOW_PAGES = (g.id for g in GROUPS)


def make_ledger(slabs: int = 12, poison: Poison = Poison.OFF) -> Ledger:
    return Ledger(Arena(slabs * choose_slab_bytes(GROUPS), torch.device("cpu")), GROUPS, poison)


def test_what_does_not_fit_changes_nothing() -> None:
    ledger = make_ledger(slabs=4)
    free, available = ledger.slabs.free, {g: p.available for g, p in ledger.pools.items()}
    assert ledger.take({PAGES: 1, SLOT: 2, WINDOW_PAGES: 10**6}) is None
    assert ledger.slabs.free == free
    assert {g: p.available for g, p in ledger.pools.items()} == available
    ledger.check()


def test_keys_values_and_states_share_the_arena_without_a_ratio() -> None:
    ledger = make_ledger(slabs=12)
    pages = ledger.take({PAGES: 8 * ledger.pools[PAGES].per_slab})
    assert pages is not None
    used_by_pages = ledger.pools[PAGES].slab_count
    for group, units in pages.items():
        ledger.give_back(group, units)
    assert used_by_pages > 3
    rows = ledger.take({SLOT: (used_by_pages - 1) * ledger.pools[SLOT].per_slab})
    assert rows is not None
    ledger.check([rows])


def test_a_fresh_slot_is_zero_whatever_lay_there() -> None:
    ledger = make_ledger(poison=Poison.NAN)
    for _ in range(3):
        units = ledger.take({SLOT: 2})
        assert units is not None
        for row in units[SLOT]:
            unit = ledger.arena.unit(row, GROUPS[SLOT].unit_bytes)
            assert not unit.any()
            unit.fill_(1)
        ledger.give_back(SLOT, units[SLOT])


@pytest.mark.parametrize("poison", [Poison.NAN, Poison.LARGE])
def test_freed_memory_is_poisoned(poison: Poison) -> None:
    ledger = make_ledger(poison=poison)
    units = ledger.take({PAGES: 3})
    assert units is not None
    for page in units[PAGES]:
        ledger.arena.unit(page, GROUPS[PAGES].unit_bytes).zero_()
    ledger.give_back(PAGES, units[PAGES])
    keys = ledger.arena.view(GROUPS[PAGES], 0, "k")[units[PAGES][0]]
    assert bool(keys.isnan().all()) if poison is Poison.NAN else float(keys.abs().min()) > 1e30


def test_giving_back_twice_is_caught() -> None:
    ledger = make_ledger()
    units = ledger.take({PAGES: 1})
    assert units is not None
    ledger.give_back(PAGES, units[PAGES])
    with pytest.raises(StateBug, match="was not taken"):
        ledger.give_back(PAGES, units[PAGES])


def test_a_unit_that_nobody_owns_is_caught_by_the_books() -> None:
    ledger = make_ledger()
    units = ledger.take({SLOT: 2})
    assert units is not None
    ledger.check([units])
    with pytest.raises(StateBug, match="taken"):
        ledger.check([])


def test_a_unit_that_two_own_is_caught_by_the_books() -> None:
    ledger = make_ledger()
    units = ledger.take({PAGES: 2})
    assert units is not None
    with pytest.raises(StateBug):
        ledger.check([units, {PAGES: units[PAGES][:1]}])


def test_fits_alone_agrees_with_what_an_empty_ledger_can_take() -> None:
    ledger = make_ledger(slabs=6)
    for pages in range(1, 6 * ledger.pools[PAGES].per_slab, 7):
        demand = {PAGES: pages, SLOT: 2, WINDOW_PAGES: 3}
        assert ledger.fits_alone(demand) == ledger.can_take(demand)


def test_units_come_from_the_fullest_slab_so_that_others_empty() -> None:
    ledger = make_ledger()
    pool = ledger.pools[PAGES]
    ledger.take({PAGES: pool.available})  # Fill the slab in which the reserved page lies.
    first, second = (ledger.take({PAGES: pool.per_slab}) for _ in range(2))
    assert first is not None
    assert second is not None
    slabs = pool.slab_count
    ledger.give_back(PAGES, first[PAGES][:-1])
    ledger.give_back(PAGES, second[PAGES][:1])
    again = ledger.take({PAGES: 1})
    assert again is not None
    assert again[PAGES][0] == second[PAGES][0]
    ledger.give_back(PAGES, first[PAGES][-1:])
    assert pool.slab_count < slabs


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 40), st.booleans()), max_size=60))
def test_the_books_hold_after_any_sequence_of_takes_and_returns(moves: list[tuple[int, int, bool]]) -> None:
    ledger = make_ledger(slabs=8)
    held: list[Units] = []
    for group, units, give in moves:
        if give and held:
            for owner, addresses in held.pop(units % len(held)).items():
                ledger.give_back(owner, addresses)
        else:
            got = ledger.take({GroupId(group): units})
            if got is not None:
                held.append(got)
        ledger.check(held)
    for owned in held:
        for owner, addresses in owned.items():
            ledger.give_back(owner, addresses)
    ledger.check()
    assert ledger.slabs.free == make_ledger(slabs=8).slabs.free


def test_units_of_different_groups_never_overlap() -> None:
    ledger = make_ledger()
    units = ledger.take({PAGES: 20, SLOT: 6, WINDOW_PAGES: 9})
    assert units is not None
    spans: list[tuple[Granule, int]] = [
        (unit, unit + GROUPS[g].unit_bytes // 256)
        for owner in (units, ledger.reserved)
        for g in owner
        for unit in owner[g]
    ]
    spans.sort()
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))


@pytest.mark.parametrize("page_size", [16, 24, 32])
def test_units_of_unlike_size_waste_little_of_a_slab(page_size: int) -> None:
    entry = (TensorSpec("k", (16, 256), torch.bfloat16), TensorSpec("v", (16, 256), torch.bfloat16))
    state = SlotSpec("gated_delta_net", (TensorSpec("delta", (49, 128, 128), torch.float32),))  # 3 MiB a row
    groups = group_specs((*((PagedSpec("full_attention", entry),),) * 4, (state,)), page_size)
    slab = choose_slab_bytes(groups)
    assert slab <= 8 << 20
    assert all(slab % group.unit_bytes <= slab * 0.05 for group in groups)
