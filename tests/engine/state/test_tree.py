"""The prefix tree, to the token: partly used pages, splits, references, leases, namespaces, and its speed."""

from time import perf_counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait_engine.state.lease import Lease
from plait_engine.state.ledger import Ledger
from plait_engine.state.node import Node, Tokens, common_prefix
from plait_engine.state.pools import StateBug
from plait_engine.state.resume_point import ResumePoint
from plait_engine.state.spec import Granule, PagedSpec, group_specs
from plait_engine.state.tree import PrefixTree
from tests.engine.state.worlds import (
    ATTENTION,
    FULL,
    HYBRID,
    MAMBA,
    PAGE,
    PAGES,
    World,
    make_ledger,
    run_of,
    tokens_of,
)


def best(world: World, tokens: Tokens, namespace: str = "") -> int:
    point = world.tree.match(namespace, tokens).best
    if point is None:
        return 0
    world.read(point, tokens)
    return point.position


def test_an_empty_tree_knows_nothing() -> None:
    match = World().tree.match("", run_of(0, 5))
    assert (match.known, match.points, match.best) == (0, (), None)


def test_a_prompt_seen_before_resumes_at_its_checkpoint() -> None:
    world = World()
    world.write(run_of(0, 10))
    assert best(world, run_of(0, 14)) == 10
    world.check()


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 7, 8, 9])
def test_the_last_token_is_always_computed(length: int) -> None:
    world = World()
    world.write(run_of(0, length))
    match = world.tree.match("", run_of(0, length))
    assert match.known == length
    assert match.best is None
    attention = World(ATTENTION)
    attention.write(run_of(0, length))
    assert best(attention, run_of(0, length)) == length - 1


@pytest.mark.parametrize("at", range(1, 12))
def test_attention_alone_resumes_at_any_token(at: int) -> None:
    world = World(ATTENTION)
    world.write(run_of(0, 12))
    other = np.concatenate([run_of(0, at), run_of(100, 5)])
    assert best(world, other) == at
    world.write(other)
    world.check()
    assert best(world, np.append(other, 7)) == len(other)
    assert best(world, run_of(0, 13)) == 12


def test_states_resume_only_where_a_checkpoint_lies() -> None:
    world = World()
    world.write(run_of(0, 12), stops=(5,))
    other = np.concatenate([run_of(0, 9), run_of(100, 5)])
    match = world.tree.match("", other)
    assert (match.known, best(world, other), match.parts) == (9, 5, True)


def test_resume_points_come_best_first_and_only_with_checkpoints() -> None:
    world = World()
    world.write(run_of(0, 20), stops=(3, 8, 13))
    points = world.tree.match("", run_of(0, 30)).points
    assert [p.position for p in points] == [20, 13, 8, 3]
    assert all(p.checkpoint is not None and p.checkpoint.position == p.position for p in points)


@pytest.mark.parametrize("at", range(1, 12))
def test_a_split_inside_a_page_leaves_both_sides_whole(at: int) -> None:
    world = World()
    world.write(run_of(0, 12))
    other = np.concatenate([run_of(0, at), run_of(100, 6)])
    world.write(other, stops=(at,))
    world.check()
    assert best(world, np.append(other, 7)) == len(other)
    assert best(world, run_of(0, 13)) == 12
    assert best(world, np.concatenate([run_of(0, at), run_of(200, 2)])) == at


def test_a_page_across_a_cut_is_freed_when_both_sides_are_gone() -> None:
    world = World()
    long = world.write(run_of(0, 12))
    short = world.write(np.concatenate([run_of(0, 6), run_of(100, 1)]), stops=(6,))
    upper = short.parent
    assert upper is not None
    assert upper.pages[PAGES][-1] == long.pages[PAGES][0]
    world.tree.drop_leaf(long)
    world.check()
    assert best(world, run_of(0, 12)) == 6
    world.tree.drop_leaf(short)
    world.tree.drop_checkpoint(upper)
    assert not list(world.tree.nodes())
    world.ledger.check()


def test_where_two_nodes_name_a_page_the_deeper_counts() -> None:
    world = World()
    world.write(run_of(0, 6))
    child = world.write(run_of(0, 11))
    point = world.tree.match("", run_of(0, 12)).best
    assert point is not None
    pages = world.tree.pages_up_to(point, PAGES)
    assert pages[1] == child.pages[PAGES][0]
    assert child.parent is not None
    assert pages[1] != child.parent.pages[PAGES][1]
    world.read(point, run_of(0, 12))


def test_a_writer_that_goes_on_in_its_page_needs_no_copy() -> None:
    world = World()
    world.write(run_of(0, 10), stops=(6,))
    parent, child = sorted(world.tree.nodes(), key=lambda n: n.start)
    assert parent.pages[PAGES][-1] == child.pages[PAGES][0]
    world.check()


def test_namespaces_know_nothing_of_one_another() -> None:
    world = World()
    world.write(run_of(0, 8), "a")
    assert best(world, run_of(0, 9), "b") == 0
    assert best(world, run_of(0, 9)) == 0
    assert best(world, run_of(0, 9), "a") == 8
    world.write(run_of(0, 8), "b")
    assert len(list(world.tree.nodes())) == 2
    world.check()


def test_an_empty_namespace_leaves_nothing_behind() -> None:
    world = World()
    for salt in range(50):
        world.tree.drop_leaf(world.write(run_of(0, 8), f"salt {salt}"))
    assert not world.tree._roots
    world.ledger.check()


def test_a_second_checkpoint_at_one_place_is_given_back() -> None:
    world = World()
    first = world.write(run_of(0, 8))
    kept = first.checkpoint
    second = world.write(run_of(0, 8))
    assert second is first
    assert second.checkpoint is kept
    world.check()


def test_a_checkpoint_is_inserted_only_published_and_at_its_own_position() -> None:
    world = World()
    misplaced = world.checkpoint(5)
    units = world.ledger.take({PAGES: 2})
    assert units is not None
    with pytest.raises(StateBug, match="at 5 is inserted at 8"):
        world.tree.insert("", run_of(0, 8), units, misplaced)
    assert not list(world.tree.nodes())


def test_tokens_without_their_pages_are_refused_and_nothing_is_shared() -> None:
    world = World()
    units = world.ledger.take({PAGES: 1})
    assert units is not None
    with pytest.raises(StateBug, match="1 pages of 2"):
        world.tree.insert("", run_of(0, 8), units, None)
    world.ledger.check([units])


def test_nothing_is_not_inserted() -> None:
    world = World()
    with pytest.raises(StateBug, match="nothing"):
        world.tree.insert("", run_of(0, 0), {PAGES: []}, None)


def test_what_is_leased_is_not_dropped() -> None:
    world = World()
    node = world.write(run_of(0, 8))
    point = world.tree.match("", run_of(0, 9)).best
    assert point is not None
    lease = world.tree.lease(point)
    with pytest.raises(StateBug):
        world.tree.drop_leaf(node)
    with pytest.raises(StateBug):
        world.tree.drop_checkpoint(node)
    lease.give_back()
    with pytest.raises(StateBug, match="twice"):
        lease.give_back()
    world.tree.drop_leaf(node)
    assert world.tree.open_leases == 0
    world.ledger.check()


@pytest.mark.parametrize("groups", [HYBRID, ATTENTION], ids=["hybrid", "attention"])
def test_a_lease_outlives_a_split_of_its_node(groups: tuple[object, ...]) -> None:
    world = World(groups)  # type: ignore[arg-type]
    node = world.write(run_of(0, 11))
    point = world.tree.match("", run_of(0, 12)).best
    assert point is not None
    lease = world.tree.lease(point)
    world.write(np.concatenate([run_of(0, 6), run_of(50, 3)]))
    assert node.parent is not None
    assert (node.leases, node.parent.leases) == (1, 1)
    world.read(point, run_of(0, 12))
    lease.give_back()
    assert all(n.leases == 0 for n in world.tree.nodes())


def test_a_pin_holds_like_a_lease_until_it_is_taken_off() -> None:
    world = World()
    node = world.write(run_of(0, 8))
    point = world.tree.match("", run_of(0, 9)).best
    assert point is not None
    world.tree.pin(point)
    world.tree.pin(point)
    with pytest.raises(StateBug):
        world.tree.drop_leaf(node)
    world.tree.unpin(point)
    assert world.tree.open_leases == 0
    world.tree.drop_leaf(node)


def test_dropping_an_inner_checkpoint_keeps_the_tokens_for_the_others() -> None:
    world = World()
    world.write(run_of(0, 12), stops=(6,))
    inner = min(world.tree.nodes(), key=lambda n: n.start)
    world.tree.drop_checkpoint(inner)
    assert [p.position for p in world.tree.match("", run_of(0, 13)).points] == [12]
    best(world, run_of(0, 13))
    world.check()


def test_dropping_a_leaf_takes_what_nobody_can_resume_from() -> None:
    world = World()
    world.write(run_of(0, 12), stops=(3, 6))
    top, middle, leaf = sorted(world.tree.nodes(), key=lambda n: n.start)
    world.tree.drop_checkpoint(middle)
    world.tree.drop_leaf(leaf)
    assert list(world.tree.nodes()) == [top]
    world.check()


def test_a_leaf_of_attention_alone_leaves_its_parent() -> None:
    world = World(ATTENTION)
    world.write(run_of(0, 8))
    leaf = world.write(np.concatenate([run_of(0, 6), run_of(50, 3)]))
    world.tree.drop_leaf(leaf)
    assert best(world, run_of(0, 9)) == 8
    world.check()


def test_a_use_counts_for_all_above_it() -> None:
    world = World()
    world.now = 1.0
    world.write(run_of(0, 12), stops=(6,))
    world.write(run_of(90, 3))
    world.now = 5.0
    point = world.tree.match("", run_of(0, 13)).best
    assert point is not None
    world.tree.lease(point).give_back()
    used = [n for n in world.tree.nodes() if n.used_at == 5.0]
    assert len(used) == 2
    assert {n.last_use for n in used} == {world.tree.clock}
    assert point.node.hits == 1


def test_pages_of_a_compressed_group_stand_for_ratio_times_as_many_tokens() -> None:
    compressed = PagedSpec("compressed", FULL.tensors, ratio=2)
    world = World(group_specs(((compressed,), (MAMBA,)), page_size=PAGE), page=2 * PAGE)
    world.write(run_of(0, 21))
    world.write(np.concatenate([run_of(0, 13), run_of(50, 9)]), stops=(13,))
    world.check()
    assert best(world, run_of(0, 22)) == 21
    assert best(world, np.concatenate([run_of(0, 13), run_of(70, 1)])) == 13


@pytest.mark.parametrize(("a", "b", "same"), [((), (), 0), ((1,), (), 0), ((1, 2), (1, 2, 3), 2), ((1, 2), (1, 3), 1)])
def test_common_prefix(a: tuple[int, ...], b: tuple[int, ...], same: int) -> None:
    assert common_prefix(tokens_of(*a), tokens_of(*b)) == same


def test_tokens_may_be_of_any_integer_type() -> None:
    world = World()
    world.write(run_of(0, 8))
    assert world.tree.match("", np.arange(9, dtype=np.int64)).known == 8  # type: ignore[arg-type]
    assert world.tree.match("", np.arange(0, 18, 1, dtype=np.int32)[:9]).known == 8


# Against a naive oracle ----------------------------------------------------------------------------------------------


class Oracle:
    """Every known prefix and every checkpoint as tuples of tokens; what is of no use is taken away token by token."""

    def __init__(self, needs_checkpoint: bool) -> None:
        self.known: set[tuple[int, ...]] = {()}
        self.checkpoints: set[tuple[int, ...]] = set()
        self.leased: list[tuple[int, ...]] = []
        self.needs_checkpoint = needs_checkpoint

    def insert(self, tokens: tuple[int, ...], checkpoint: bool) -> None:
        self.known |= {tokens[:i] for i in range(len(tokens) + 1)}
        if checkpoint and self.needs_checkpoint:
            self.checkpoints.add(tokens)

    def match(self, tokens: tuple[int, ...]) -> tuple[int, list[int]]:
        known = max(i for i in range(len(tokens) + 1) if tokens[:i] in self.known)
        points = [i for i in range(known, 0, -1) if i < len(tokens) and tokens[:i] in self.checkpoints]
        return known, points

    def drop(self, tokens: tuple[int, ...], down_to: int) -> None:
        """Forget the checkpoint at ``tokens``, and tokens that do not lead to anything, but not below ``down_to``."""
        self.checkpoints.discard(tokens)
        while len(tokens) > down_to and not self._serves(tokens):
            self.known.discard(tokens)
            tokens = tokens[:-1]

    def _serves(self, tokens: tuple[int, ...]) -> bool:
        longer = any(len(k) == len(tokens) + 1 and k[:-1] == tokens for k in self.known)
        held = any(leased[: len(tokens)] == tokens for leased in self.leased)
        return longer or held or tokens in self.checkpoints


def prefix_of(node: Node) -> tuple[int, ...]:
    return tuple(int(t) for part in node.path() for t in part.tokens)


Step = tuple[int, list[int], int]
STEPS = st.lists(
    st.tuples(st.integers(0, 5), st.lists(st.integers(0, 2), min_size=1, max_size=14), st.integers(0, 10)), max_size=25
)


class Pair:
    """The tree and the oracle, driven alike."""

    def __init__(self, hybrid: bool) -> None:
        self.world = World(HYBRID if hybrid else ATTENTION)
        self.oracle = Oracle(hybrid)
        self.leases: list[tuple[Lease, tuple[int, ...]]] = []

    def step(self, kind: int, values: list[int], choice: int) -> None:
        tokens = np.array(values, np.int32)
        if kind <= 2:
            stops = (choice,) if 0 < choice < len(values) else ()
            self.world.write(tokens, keep=kind > 0, stops=stops)
            for stop in stops:
                self.oracle.insert(tuple(values[:stop]), True)
            self.oracle.insert(tuple(values), kind > 0)
        elif kind == 3:
            point = self.world.tree.match("", tokens).best
            if point is not None:
                prefix = tuple(values[: point.position]) if self.oracle.needs_checkpoint else prefix_of(point.node)
                self.leases.append((self.world.tree.lease(point), prefix))
                self.oracle.leased.append(prefix)
        elif kind == 4 and self.leases:
            lease, prefix = self.leases.pop(choice % len(self.leases))
            lease.give_back()
            self.oracle.leased.remove(prefix)
        elif kind == 5:
            self.evict(choice)
        self.compare(tokens)

    def evict(self, choice: int) -> None:
        nodes = [n for n in self.world.tree.nodes() if self._evictable(n)]
        if not nodes:
            return
        node = nodes[choice % len(nodes)]
        prefix, start = prefix_of(node), node.start
        if node.children:
            self.world.tree.drop_checkpoint(node)
        else:
            self.world.tree.drop_leaf(node)
        self.oracle.drop(prefix, 0 if self.oracle.needs_checkpoint else start)

    def _evictable(self, node: Node) -> bool:
        if node.children:
            return node.checkpoint is not None and not node.checkpoint.leases
        return not node.leases

    def compare(self, tokens: Tokens) -> None:
        self.world.check()
        match = self.world.tree.match("", tokens)
        known, points = self.oracle.match(tuple(tokens.tolist()))
        assert match.known == known
        if self.oracle.needs_checkpoint:
            assert [p.position for p in match.points] == points
        for point in match.points:
            self.world.read(point, tokens)


@settings(max_examples=150, deadline=None)
@given(STEPS, st.booleans())
def test_the_tree_agrees_with_a_set_of_prefixes(steps: list[Step], hybrid: bool) -> None:
    pair = Pair(hybrid)
    for kind, values, choice in steps:
        pair.step(kind, values, choice)
    for lease, _ in pair.leases:
        lease.give_back()
    pair.world.check()
    assert pair.world.tree.open_leases == 0


# Speed ---------------------------------------------------------------------------------------------------------------


class PaperLedger(Ledger):
    """Books without bytes: zeroing and poison cost nothing."""

    def _fill(self, group: object, units: list[Granule], value: int) -> None: ...


def seconds(tree: PrefixTree, tokens: Tokens, pages: list[Granule]) -> float:
    """Of one look-up and one insert, the best of a few: other work on the machine is not of interest."""
    times = []
    for i in range(7):
        prompt = np.append(tokens, np.int32(-1 - i))
        started = perf_counter()
        tree.match("", prompt)
        tree.insert("", prompt, {PAGES: pages}, None)
        times.append(perf_counter() - started)
    return min(times)


@pytest.mark.parametrize("nodes", [1, 200, 1000], ids=["one node", "200 nodes", "1,000 nodes"])
def test_a_prompt_of_100_000_tokens_is_found_and_inserted_within_2_ms(nodes: int) -> None:
    groups = group_specs(((FULL,), (MAMBA,)), page_size=16)
    ledger = make_ledger(20_000, groups)
    tree = PrefixTree(ledger)
    units = ledger.take({PAGES: 6_251})
    assert units is not None
    tokens = np.random.default_rng(0).integers(0, 150_000, 100_000).astype(np.int32)
    for end in np.linspace(0, 100_000, nodes + 1).astype(int)[1:]:
        tree.insert("", tokens[:end], units, None)
    assert len(list(tree.nodes())) == nodes
    assert seconds(tree, tokens, units[PAGES]) <= 2e-3


def test_a_resume_point_is_a_plain_value() -> None:
    world = World()
    world.write(run_of(0, 8))
    match = world.tree.match("", run_of(0, 9))
    assert isinstance(match.best, ResumePoint)
    assert match.best == match.points[0]
