"""What goes when room is needed, what stays, and what is promised about it."""

import random
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait_engine.state import compaction
from plait_engine.state.eviction import (
    Entry,
    EvictionPolicy,
    Evictor,
    LearnedEvictor,
    LeastRecentlyUsed,
    Score,
    _Tally,
    branch_position,
)
from plait_engine.state.ledger import Demand
from plait_engine.state.node import Node, Tokens
from plait_engine.state.poison import Poison
from plait_engine.state.resume_point import Match
from plait_engine.state.reuse_model import GRID, Sighting
from plait_engine.state.unit_copy import UnitCopy
from tests.engine.state.worlds import ATTENTION, PAGE, PAGES, SLOT, World, run_of


class Fixed(LeastRecentlyUsed):
    """Scores by the node's first token."""

    def score(self, entry: Entry, now: float) -> Score:  # noqa: ARG002
        return Score(float(entry.node.first))


def everything(world: World) -> Demand:
    """Pages enough that nothing cached can stay."""
    pool, slabs = world.ledger.pools[PAGES], world.ledger.slabs
    rows = (
        -(-len(world.ledger.reserved.get(SLOT, [])) // world.ledger.pools[SLOT].per_slab)
        if SLOT in world.ledger.pools
        else 0
    )
    return {PAGES: (slabs.total - rows) * pool.per_slab - 1}


def one_more_slab(world: World) -> Demand:
    pool = world.ledger.pools[PAGES]
    return {PAGES: (world.ledger.slabs.free + 1) * pool.per_slab + pool.available}


def more_rows(world: World) -> Demand:
    """Rows for which one more slab must become free."""
    pool = world.ledger.pools[SLOT]
    return {SLOT: (world.ledger.slabs.free + 1) * pool.per_slab + pool.available}


def starts(world: World) -> set[int]:
    return {n.first for n in world.tree.nodes()}


def filled(policy: EvictionPolicy, prompts: int = 6, **options: object) -> tuple[World, Evictor]:
    world = World()
    evictor = Evictor(world.tree, policy, **options)  # type: ignore[arg-type]
    per_slab = world.ledger.pools[PAGES].per_slab
    for i in range(prompts):
        world.now = float(i)
        world.write(run_of(10_000 * (i + 1), per_slab * PAGE))
    return world, evictor


def test_room_that_is_there_costs_nothing() -> None:
    world, evictor = filled(LeastRecentlyUsed())
    assert evictor.make_room({PAGES: 1})
    assert len(starts(world)) == 6


def test_the_lowest_score_goes_first_and_no_more_than_needed() -> None:
    world, evictor = filled(Fixed())
    assert evictor.make_room(one_more_slab(world))
    assert starts(world) == {10_000 * i for i in range(2, 7)}
    world.check()


def test_least_recently_used_spares_what_was_used_again() -> None:
    world, evictor = filled(LeastRecentlyUsed())
    point = world.tree.match("", run_of(10_000, 10_000)).best
    assert point is not None
    world.tree.lease(point).give_back()
    assert evictor.make_room(one_more_slab(world))
    assert 10_000 in starts(world)
    assert 20_000 not in starts(world)


@pytest.mark.parametrize("pin", [False, True], ids=["leased", "pinned"])
def test_what_is_held_never_goes_and_goes_again_when_it_is_let_go(pin: bool) -> None:
    world, evictor = filled(Fixed())
    point = world.tree.match("", run_of(10_000, 10_000)).best
    assert point is not None
    lease = None if pin else world.tree.lease(point)
    if pin:
        world.tree.pin(point)
    assert evictor.make_room(one_more_slab(world))
    assert starts(world) == {10_000 * i for i in (1, 3, 4, 5, 6)}
    world.tree.unpin(point) if lease is None else lease.give_back()
    assert evictor.make_room(one_more_slab(world))
    assert 10_000 not in starts(world)


def test_what_cannot_be_reached_destroys_nothing() -> None:
    world, evictor = filled(LeastRecentlyUsed())
    point = world.tree.match("", run_of(10_000, 10_000)).best
    assert point is not None
    lease = world.tree.lease(point)
    assert not evictor.make_room(everything(world))
    assert len(starts(world)) == 6
    lease.give_back()
    assert evictor.make_room(everything(world))
    assert not starts(world)
    world.ledger.check()


def test_units_of_running_sequences_count_as_out_of_reach() -> None:
    world, evictor = filled(LeastRecentlyUsed())
    running = world.ledger.take({PAGES: 1})
    assert running is not None
    world.ledger.give_back(PAGES, running[PAGES])
    held = world.ledger.take({PAGES: one_more_slab(world)[PAGES] - world.ledger.pools[PAGES].per_slab})
    assert held is not None
    assert not evictor.make_room({PAGES: 100 * world.ledger.pools[PAGES].per_slab})
    assert len(starts(world)) == 6


def test_an_inner_checkpoint_goes_without_its_tokens() -> None:
    world = World()
    evictor = Evictor(world.tree, Fixed())
    world.write(run_of(1, 12), stops=(6,))
    rows = world.ledger.pools[SLOT]
    world.ledger.take({SLOT: rows.available})
    free = world.ledger.slabs.free
    world.ledger.take({SLOT: free * rows.per_slab})
    assert evictor.make_room({SLOT: 2})
    assert [p.position for p in world.tree.match("", run_of(1, 13)).points] == [12]
    world.tree.check()


def test_what_nothing_can_resume_from_goes_first() -> None:
    counted: list[tuple[str, str]] = []
    world, evictor = filled(Fixed(), count=lambda kind, reason: counted.append((kind, reason)))
    evictor.policy = Recompute()
    world.write(run_of(70_000, world.ledger.pools[PAGES].per_slab * PAGE), keep=False)
    assert evictor.make_room(one_more_slab(world))
    assert 70_000 not in starts(world)
    assert counted == [("leaf", "unreachable")]


class Recompute(LeastRecentlyUsed):
    def score(self, entry: Entry, now: float) -> Score:  # noqa: ARG002
        return Score(entry.seconds)


def test_losing_the_resume_point_below_makes_a_checkpoint_worth_more() -> None:
    world = World()
    evictor = Evictor(world.tree, Recompute())
    world.write(run_of(1, 40), stops=(30,))
    world.write(run_of(500, 20))
    leaf = max(world.tree.nodes(), key=lambda n: n.start)
    evictor._rescore()
    assert leaf.parent is not None
    world.tree.drop_checkpoint(leaf.parent)
    assert evictor._evict_one()
    assert leaf in list(world.tree.nodes())


def test_attention_alone_evicts_leaves_and_needs_no_checkpoints() -> None:
    world = World(ATTENTION, slabs=4)
    evictor = Evictor(world.tree, LeastRecentlyUsed())
    world.write(run_of(0, 40))
    world.write(np.concatenate([run_of(0, 20), run_of(90, 20)]))
    assert evictor.make_room(everything(world))
    assert not list(world.tree.nodes())
    world.ledger.check()


def test_an_evictor_takes_over_a_tree_that_is_full_already() -> None:
    world, _ = filled(LeastRecentlyUsed())
    assert Evictor(world.tree, Fixed()).make_room(one_more_slab(world))
    assert 10_000 not in starts(world)


def test_evictions_are_counted_by_kind_and_reason() -> None:
    counted: list[tuple[str, str]] = []
    world, evictor = filled(LeastRecentlyUsed(), count=lambda kind, reason: counted.append((kind, reason)))
    assert evictor.make_room(everything(world))
    assert counted == [("leaf", "capacity")] * 6


@pytest.mark.parametrize(
    ("known", "parts", "branch", "expected"),
    [
        (0, False, None, None),
        (100, True, None, 100),
        (100, False, None, None),
        (GRID + 3, False, GRID, GRID + 3),
        (GRID + 3, True, 3 * GRID, 3 * GRID),
        (0, False, 2 * GRID, 2 * GRID),
    ],
)
def test_a_branch_is_what_the_tree_sees_or_memory_knows(
    known: int, parts: bool, branch: int | None, expected: int | None
) -> None:
    assert branch_position(Match(known, (), parts), Sighting(0, branch)) == expected


# The learned policy --------------------------------------------------------------------------------------------------


def prompt(*names: int) -> Tokens:
    return np.concatenate([run_of(1000 * name, GRID) for name in names])


def serve(world: World, evictor: Evictor, tokens: Tokens, room: Demand) -> int:
    """Tokens skipped."""
    match = world.tree.match("", np.append(tokens, np.int32(-1)))
    stops: tuple[int, ...] = ()
    if isinstance(evictor, LearnedEvictor):
        branch = branch_position(match, evictor.observe("", tokens, len(tokens)))
        resume = 0 if match.best is None else match.best.position
        stops = (branch,) if branch is not None and resume < branch < len(tokens) else ()
    world.write(tokens, stops=stops)
    assert evictor.make_room(room)
    return 0 if match.best is None else match.best.position


def hits(evictor_class: type[LearnedEvictor] | None, cached_prompts: int = 12) -> int:
    """Chats that pause a minute between turns, among prompts that come once: recency keeps the wrong ones."""
    per_prompt = 4 * GRID // PAGE
    world = World(slabs=(cached_prompts + 4) * -(-per_prompt // 6), track=False)
    evictor = LearnedEvictor(world.tree) if evictor_class else Evictor(world.tree, LeastRecentlyUsed())
    rng, events = random.Random(1), []
    for chat in range(60):
        start = rng.uniform(0, 600)
        turns = ((turn, start + turn * rng.uniform(50, 70)) for turn in range(3))
        events += [
            (seconds, prompt(3 * chat + 1, *range(5000 + 9 * chat, 5001 + 9 * chat + turn))) for turn, seconds in turns
        ]
    events += [(rng.uniform(0, 700), prompt(*range(6000 + 4 * i, 6004 + 4 * i))) for i in range(400)]
    total = 0
    for world.now, tokens in sorted(events, key=lambda e: e[0]):
        total += serve(world, evictor, tokens, {PAGES: 2 * per_prompt, SLOT: 4})
    world.check()
    return total


def test_expected_reuse_keeps_chats_through_their_pauses_where_recency_does_not() -> None:
    assert hits(LearnedEvictor) > 3 * max(1, hits(None))


# Any order of events -------------------------------------------------------------------------------------------------

EVENTS = st.lists(
    st.tuples(st.integers(0, 4), st.lists(st.integers(0, 2), min_size=1, max_size=20), st.integers(1, 12)), max_size=30
)


def reachable(world: World, demand: Demand) -> bool:
    """Evict everything that can be evicted, and see."""
    while not world.ledger.can_take(demand):
        for node in list(world.tree.nodes()):
            if node.children and node.checkpoint is not None and not node.checkpoint.leases:
                world.tree.drop_checkpoint(node)
                break
            if not node.children and not node.leases:
                world.tree.drop_leaf(node)
                break
        else:
            return False
    return True


@settings(max_examples=100, deadline=None)
@given(EVENTS, st.booleans(), st.booleans())
def test_room_is_made_exactly_when_it_can_be(
    events: list[tuple[int, list[int], int]], learned: bool, compact: bool
) -> None:
    world = World(slabs=14)
    move = mover(world) if compact else None
    evictor = LearnedEvictor(world.tree, move=move) if learned else Evictor(world.tree, LeastRecentlyUsed(), move=move)
    leases = []
    for kind, values, amount in events:
        world.now += amount
        tokens = np.array(values, np.int32)
        if kind <= 1 and evictor.make_room({PAGES: 7, SLOT: 4}):
            world.write(tokens, stops=(amount,) if amount < len(values) else ())
        elif kind == 2 and (point := world.tree.match("", tokens).best) is not None:
            leases.append((world.tree.lease(point), point, tokens))
        elif kind == 3 and leases:
            leases.pop(amount % len(leases))[0].give_back()
        elif kind == 4:
            demand, nodes = {PAGES: 10 * amount, SLOT: 2}, len(list(world.tree.nodes()))
            if evictor.make_room(demand):
                assert world.ledger.can_take(demand)
            elif not compact:
                assert len(list(world.tree.nodes())) == nodes
                assert not reachable(world, demand)
        world.check()
        for _, point, held in leases:
            world.read(point, held)
    for lease, _, _ in leases:
        lease.give_back()


# Moving survivors ----------------------------------------------------------------------------------------------------


def mover(world: World) -> "Mover":
    return Mover(world)


class Mover:
    """Copies what pages hold, as the runner would, and remembers how much it was."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.moves: list[UnitCopy] = []

    def __call__(self, moves: list[UnitCopy]) -> None:
        self.moves += moves
        sources, targets = {(m.group, m.source) for m in moves}, {(m.group, m.target) for m in moves}
        assert not sources & targets
        contents = self.world.contents
        for move, offset in product(moves, range(PAGE)):
            if move.group == PAGES and (move.source, offset) in contents:
                contents[move.target, offset] = contents[move.source, offset]


def scattered(move: bool) -> tuple[World, Evictor, Mover, list[Node]]:
    """Every second of many short prompts is gone, so that every slab is half empty."""
    world = World(slabs=100)
    mover = Mover(world)
    evictor = Evictor(world.tree, LeastRecentlyUsed(), move=mover if move else None)
    nodes = [world.write(run_of(1000 * i + 1, 4 * PAGE)) for i in range(40)]
    for node in nodes[::2]:
        world.tree.drop_leaf(node)
    return world, evictor, mover, nodes[1::2]


def test_survivors_are_moved_together_instead_of_evicted() -> None:
    world, evictor, mover, nodes = scattered(move=True)
    demand = one_more_slab(world)
    demand = {
        SLOT: (world.ledger.slabs.free + 1) * world.ledger.pools[SLOT].per_slab + world.ledger.pools[SLOT].available
    }
    assert evictor.make_room(demand)
    assert mover.moves
    assert set(world.tree.nodes()) == set(nodes)
    world.check()
    for node in nodes:
        tokens = np.append(node.tokens, np.int32(-1))
        point = world.tree.match("", tokens).best
        assert point is not None
        world.read(point, tokens)


def test_little_is_not_moved_together_while_something_can_be_evicted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "WORTH_IT", 5)  # 20 of 100 slabs, more than could be emptied
    world, evictor, mover, nodes = scattered(move=True)
    assert evictor.make_room(more_rows(world))
    assert not mover.moves
    assert any(node.is_gone for node in nodes)
    world.check()


def test_where_nothing_can_be_evicted_even_little_is_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "WORTH_IT", 1)
    world, evictor, mover, nodes = scattered(move=True)
    for node in nodes:  # a pinned one stays, but nobody has its addresses
        point = world.tree.match("", np.append(node.tokens, np.int32(-1))).best
        assert point is not None
        world.tree.pin(point)
    assert evictor.make_room(more_rows(world))
    assert mover.moves
    assert not any(node.is_gone for node in nodes)


@pytest.mark.parametrize("move", [False, True])
def test_that_room_can_be_made_is_seen_without_a_look_at_everything(
    move: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a full cache it is asked at every other step."""
    world, evictor, _, nodes = scattered(move=move)
    looked: list[Node] = []
    adds_up = Evictor._adds_up

    def look(evictor: Evictor, tally: _Tally, node: Node, demand: Demand) -> bool:
        looked.append(node)
        return adds_up(evictor, tally, node, demand)

    monkeypatch.setattr(Evictor, "_adds_up", look)
    assert evictor.make_room(more_rows(world))
    assert len(looked) < len(nodes) / 2


def test_in_poison_mode_what_was_moved_away_is_unusable_where_it_lay() -> None:
    world, evictor, mover, _ = scattered(move=True)
    world.ledger.poison = Poison.NAN
    world.ledger.arena.bytes.zero_()
    assert evictor.make_room(more_rows(world))
    assert mover.moves
    for move in mover.moves:
        left = world.ledger.arena.unit(move.source, world.groups[move.group].unit_bytes)
        moved = world.ledger.arena.unit(move.target, world.groups[move.group].unit_bytes)
        assert bool((left == 0xFF).all())
        assert not moved.any()


def test_without_a_mover_the_same_room_costs_evictions() -> None:
    world, evictor, _, nodes = scattered(move=False)
    demand = {
        SLOT: (world.ledger.slabs.free + 1) * world.ledger.pools[SLOT].per_slab + world.ledger.pools[SLOT].available
    }
    assert evictor.make_room(demand)
    assert len(list(world.tree.nodes())) < len(nodes)


def test_leased_units_and_those_of_running_sequences_are_not_moved() -> None:
    world, evictor, mover, nodes = scattered(move=True)
    held = {unit for node in nodes[::3] for unit in node.pages[PAGES]}
    leases = []
    for node in nodes[::3]:
        point = world.tree.match("", np.append(node.tokens, np.int32(-1))).best
        assert point is not None
        leases.append(world.tree.lease(point))
    evictor.make_room({SLOT: (world.ledger.slabs.free + 2) * world.ledger.pools[SLOT].per_slab})
    assert not held & {m.source for m in mover.moves if m.group == PAGES}
    for lease in leases:
        lease.give_back()
    world.check()


def test_a_page_that_others_took_behind_the_tree_is_not_moved_under_them() -> None:
    world, evictor, mover, nodes = scattered(move=True)
    stolen = {node.pages[PAGES][0] for node in nodes}
    world.ledger.give_back(PAGES, stolen)
    running = world.ledger.take({PAGES: world.ledger.pools[PAGES].available})
    assert running is not None
    assert stolen <= set(running[PAGES])
    world.ledger.give_back(PAGES, [unit for unit in running[PAGES] if unit not in stolen])
    evictor.make_room(more_rows(world))
    assert not stolen & {move.source for move in mover.moves if move.group == PAGES}
