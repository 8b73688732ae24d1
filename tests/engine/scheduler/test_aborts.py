"""CASES 37, 38: an abort in any phase frees everything within two steps and disturbs nobody."""

import random

import pytest

from tests.engine.scheduler.fake import FakeLoad, fake_engine, plans, request

LOOPS = pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlapped"])


def gone_within_two_steps(load: FakeLoad, id: str) -> None:
    scheduler = load.engine.scheduler
    for _ in range(2):
        load.step()
    assert all(s.request.id != id for s in (*scheduler.running, *scheduler.waiting))


@LOOPS
@pytest.mark.parametrize("after", range(12))
def test_an_abort_after_any_step_of_its_life_frees_everything(after: int, overlap: bool) -> None:
    """Steps 0: queued; 1 to 6: each chunk of its prompt; then decoding, under overlap with a step in flight."""
    load = FakeLoad(fake_engine(budget=13, overlap=overlap, max_seqs=3))
    load.add(request("victim", prompt=40, max_tokens=4, n=2), request("other", prompt=9, max_tokens=30))
    for _ in range(after):
        load.step()
    load.abort("victim")
    gone_within_two_steps(load, "victim")
    load.finish()


@LOOPS
def test_one_of_several_sequences_can_be_aborted_alone(overlap: bool) -> None:
    load = FakeLoad(fake_engine(overlap=overlap))
    load.add(request("r", prompt=5, max_tokens=9, n=4))
    for _ in range(4):
        load.step()
    load.abort("r", 2)
    load.finish()
    assert {index for _, index in load.finished} == {0, 1, 3}


@LOOPS
def test_unknown_and_repeated_aborts_are_ignored(overlap: bool) -> None:
    load = FakeLoad(fake_engine(overlap=overlap))
    load.add(request("r", prompt=5), request("s", prompt=6))
    load.step()
    for _ in range(3):
        load.abort("r")
        load.engine.abort("nobody")
        load.engine.abort("s", 7)
    load.finish()


@LOOPS
def test_a_preempted_sequence_can_be_aborted_in_the_queue(overlap: bool) -> None:
    load = FakeLoad(fake_engine(slabs=30, units_per_slab=1, overlap=overlap))
    load.add(request("old", prompt=6, max_tokens=26), request("young", prompt=6, max_tokens=26))
    while not len(load.engine.scheduler.waiting):
        load.step()
    load.abort("young")
    gone_within_two_steps(load, "young")
    load.finish()


@LOOPS
def test_five_hundred_random_aborts_leave_the_books_right(overlap: bool) -> None:
    rng = random.Random(5)
    load = FakeLoad(fake_engine(slabs=70, overlap=overlap, max_seqs=5, ends=0.05))
    aborts = added = 0
    while aborts < 500:
        if len(load.engine._sequences) < 12:
            prompt, tokens = rng.randint(1, 60), rng.randint(1, 30)
            load.add(request(f"r{added}", prompt=prompt, max_tokens=tokens, n=rng.choice([1, 1, 3])))
            added += 1
        if rng.random() < 0.7:
            id, index = rng.choice(list(load.engine._sequences))
            load.abort(id, rng.choice([None, index]))
            aborts += 1
        if rng.random() < 0.8 and not load.engine.idle:
            load.step()
    load.finish()
    assert len(plans(load.engine)) > 100


def test_what_a_step_in_flight_writes_to_is_kept_until_it_has_landed() -> None:
    load = FakeLoad(fake_engine(overlap=True))
    load.add(request("r", prompt=5, max_tokens=9))
    for _ in range(3):
        load.step()
    (sequence,) = load.engine.scheduler.running
    assert sequence.in_flight
    load.abort("r")
    assert any(sequence.state.owned().values())
    load.step()
    assert not any(sequence.state.owned().values())
    load.finish()
