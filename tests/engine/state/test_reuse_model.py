"""Learning from arrivals how likely a prefix is asked for again."""

import math
import random

import numpy as np
import pytest

from plait_engine.state.node import Tokens
from plait_engine.state.reuse_model import AGES, BINS, GRID, Kind, ReuseClass, ReuseModel, prefix_names


def blocks(*names: int) -> Tokens:
    return np.concatenate([np.random.default_rng(name).integers(0, 1000, GRID) for name in names]).astype(np.int32)


def see(model: ReuseModel, now: float, *names: int, namespace: str = "") -> tuple[int, int | None]:
    tokens = blocks(*names)
    sighting = model.observe(namespace, tokens, len(tokens), now)
    branch = None if sighting.branch is None else sighting.branch // GRID
    return sighting.known // GRID, branch


def test_equal_prefixes_have_equal_names_and_others_differ() -> None:
    a, b = prefix_names("", blocks(1, 2, 3)), prefix_names("", blocks(1, 2, 4))
    assert a[:2] == b[:2]
    assert a[2] != b[2]
    assert prefix_names("", blocks(2, 1))[1] != a[1]
    assert not set(prefix_names("salt", blocks(1, 2, 3))) & set(a)
    assert prefix_names("", blocks(1)[:-1]) == []


def test_the_next_turn_of_a_chat_is_no_branch() -> None:
    model = ReuseModel()
    assert see(model, 0, 1, 2) == (0, None)
    assert see(model, 60, 1, 2, 3) == (2, None)
    assert see(model, 120, 1, 2, 3, 4) == (3, None)


def test_prompts_part_where_the_second_leaves_the_first() -> None:
    model = ReuseModel()
    see(model, 0, 1, 2, 3)
    assert see(model, 1, 1, 2, 4) == (2, 2)
    assert see(model, 2, 1, 2, 5) == (2, 2)


def test_an_end_that_two_go_on_from_is_a_branch_at_the_second() -> None:
    model = ReuseModel()
    see(model, 0, 1, 2)
    assert see(model, 1, 1, 2, 3) == (2, None)
    assert see(model, 2, 1, 2, 4) == (2, 2)


def test_namespaces_do_not_learn_of_one_another() -> None:
    model = ReuseModel()
    see(model, 0, 1, 2, 3, namespace="a")
    assert see(model, 1, 1, 2, 4, namespace="b") == (0, None)


def test_turns_and_new_tokens_make_the_class() -> None:
    model = ReuseModel()
    for turn in range(1, 5):
        see(model, turn * 60.0, *range(turn + 3))
    found = model.find("", blocks(*range(7)))
    assert found is not None
    assert (found.record.turns, found.position) == (4, 7 * GRID)
    passed = model.find("", blocks(*range(6)))
    assert passed is not None
    assert passed.record.klass.kind is Kind.PASSED


def test_before_anything_is_seen_the_younger_is_worth_more() -> None:
    model = ReuseModel()
    values = [model.index(ReuseClass(Kind.TAIL, 1, 12), age)[0] for age in (0.5, 2, 10, 100, 1000, 10_000)]
    assert values == sorted(values, reverse=True)
    assert all(value > 0 for value in values)


def test_an_index_holds_to_the_end_of_its_age_bin() -> None:
    model = ReuseModel()
    klass = ReuseClass(Kind.TAIL, 1, 12)
    value, until = model.index(klass, 50.0)
    assert until == min(age for age in AGES if age > 50)
    assert model.index(klass, until - 1e-6)[0] == value
    assert model.index(klass, 1e9)[1] == math.inf


def chat_traffic(model: ReuseModel, sessions: int, pause: float) -> float:
    """Half the sessions go on, after ``pause`` seconds; their prompts have four blocks, others twelve."""
    rng, events = random.Random(0), []
    for session in range(sessions):
        start, goes_on = rng.uniform(0, 4000), session % 2
        own = [10 * session + i + 1000 for i in range(12)]
        events.append((start, own[:4] if goes_on else own))
        if goes_on:
            events.append((start + pause * rng.uniform(0.8, 1.25), own[:6]))
    for now, names in sorted(events):
        see(model, now, *names)
    return 4000.0


def test_it_learns_which_prompts_come_back_and_when() -> None:
    model = ReuseModel()
    chat_traffic(model, 600, pause=60)
    short, long = (ReuseClass(Kind.TAIL, 1, (n * GRID).bit_length()) for n in (4, 12))
    assert model.index(short, 45)[0] > 20 * model.index(long, 45)[0]
    assert model.index(short, 45)[0] > 1.5 * model.index(short, 5)[0]
    assert model.index(short, 45)[0] > 10 * model.index(short, 300)[0]


def test_hits_and_exposure_add_up() -> None:
    model = ReuseModel()
    see(model, 0.0, 1, 2)
    see(model, 10.0, 3, 4)
    see(model, 40.0, 1, 2, 5)
    tail = ReuseClass(Kind.TAIL, 1, (2 * GRID).bit_length())
    counts = model._counts[tail]
    assert counts.hits.sum() == 1
    model._grow_older(100.0)
    assert counts.exposure(100.0).sum() == pytest.approx(40 + 90)
    assert len(counts.exposure(100.0)) == BINS


def test_memory_is_bounded_and_the_longest_unused_is_forgotten() -> None:
    model = ReuseModel(max_points=50)
    for i in range(100):
        see(model, float(i), 1, *range(10 * i + 10, 10 * i + 14))
    assert len(model._points) <= 50
    assert see(model, 101.0, 1, 7)[0] == 1
    assert see(model, 102.0, 10, 11)[0] == 0
    assert all(n >= 0 for counts in model._counts.values() for n in counts.open)


def test_prompts_shorter_than_the_grid_are_no_trouble() -> None:
    model = ReuseModel()
    short = np.arange(5, dtype=np.int32)
    assert model.observe("", short, 5, 0.0).branch is None
    assert model.find("", short) is None


def test_a_clock_that_stands_still_is_no_trouble() -> None:
    model = ReuseModel()
    for i in range(300):
        see(model, 0.0, 1, i + 10)
    values = [model.index(klass, 0.0)[0] for klass in model._counts]
    assert all(math.isfinite(value) and value > 0 for value in values)
