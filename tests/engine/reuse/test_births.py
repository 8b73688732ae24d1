"""Births of units: what was freed, and taken by others, behind the tree's back is never taken for what it was."""

import time

import pytest

from plait_engine.state.restore import find_flaw
from plait_engine.state.spec import Granule, group_specs
from tests.engine.state.worlds import FULL, MAMBA, PAGES, SLOT, World, run_of


def test_a_unit_is_another_one_each_time_that_it_is_taken() -> None:
    world = World()
    seen = set()
    for _ in range(5):
        units = world.ledger.take({PAGES: 3})
        assert units is not None
        births = world.ledger.births(PAGES, units[PAGES])
        assert not seen & set(births)
        seen |= set(births)
        world.ledger.give_back(PAGES, units[PAGES])
        assert world.ledger.births(PAGES, units[PAGES]) == [None] * 3
    assert len(seen) == 15


def test_what_is_moved_stays_what_it_was() -> None:
    pool = World().ledger.pools[PAGES]
    pool.take(7 * pool.per_slab)  # Some of them leave room for what is moved below.
    units = list(pool.taken)
    slab = pool.slab_of(units[-1])
    births = {unit: pool.births[unit] for unit in units if pool.slab_of(unit) == slab}
    pool.give_back([unit for unit in units if pool.slab_of(unit) == pool.slab_of(units[0])][1:])
    pool.give_back(list(births)[1:])
    moves = pool.relocate([slab])
    assert list(moves) == list(births)[:1]
    assert [pool.births[target] for target in moves.values()] == list(births.values())[:1]


def steal(world: World, page: Granule) -> None:
    world.ledger.give_back(PAGES, [page] * world.ledger.references(PAGES, page))
    while (taken := world.ledger.take({PAGES: 1})) is not None and taken[PAGES] != [page]:
        pass


@pytest.mark.parametrize("page", [0, 1, 2])
@pytest.mark.parametrize("part", [0, 5, 8])
def test_a_page_that_others_have_is_noticed_also_where_its_node_was_cut_in_two(page: int, part: int) -> None:
    world, tokens = World(), run_of(0, 11)
    node = world.write(tokens)
    stolen = node.pages[PAGES][page]
    point = world.tree.match("", run_of(0, 12)).best
    assert point is not None
    assert find_flaw(point, world.ledger, "test") is None
    steal(world, stolen)
    if part:
        pages = world.ledger.take({PAGES: 3})
        assert pages is not None
        world.tree.insert("", tokens[:part], pages, world.checkpoint(part))
    flaw = find_flaw(point, world.ledger, "test")
    assert flaw is not None
    assert (flaw.state, flaw.reason) == ("full_attention", "stale")
    assert flaw.node is not None
    for checkpoint in world.tree.cut(flaw.node):
        checkpoint.discard(world.ledger)
    assert world.ledger.references(PAGES, stolen) == 1  # Theirs.
    for left in list(world.tree.nodes()):
        assert stolen not in left.pages[PAGES]
    assert world.tree.match("", tokens).known <= part


def test_looking_up_and_checking_a_hundred_thousand_tokens_takes_two_milliseconds() -> None:
    world = World(slabs=30_000, page=16, track=False, groups=group_specs(((FULL,), (MAMBA,), (MAMBA,)), page_size=16))
    world.write(run_of(0, 100_000), stops=tuple(range(4096, 100_000, 4096)))
    tokens, seconds = run_of(0, 100_001), []
    for _ in range(20):
        started = time.perf_counter()
        point = world.tree.match("", tokens).best
        assert point is not None
        assert find_flaw(point, world.ledger, "test") is None
        seconds.append(time.perf_counter() - started)
        assert point.checkpoint is not None
        assert point.checkpoint.births.keys() == {SLOT}
    assert min(seconds) < 0.002
