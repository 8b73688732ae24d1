"""Preemption gives the younger one's memory to the older one, and costs nobody a token."""

import pytest

from tests.engine.scheduler.fake import ATTENTION, HYBRID, FakeLoad, fake_engine, plans, request
from tests.engine.tiny import PAGE

LOOPS = pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlapped"])


@LOOPS
@pytest.mark.parametrize("pages", [12, 11, 10, 9])
def test_a_preempted_sequence_goes_on_as_if_nothing_had_happened(pages: int, overlap: bool) -> None:
    """Two sequences of 8 pages each in the end: the fewer pages there are, the more often the younger one yields."""
    load = FakeLoad(fake_engine(slabs=pages + 1, units_per_slab=1, groups=ATTENTION, overlap=overlap))
    load.add(request("old", prompt=6, max_tokens=26), request("young", prompt=6, max_tokens=26))
    load.finish()
    assert load.engine.scheduler.preempted >= 1
    assert list(load.finished) == [("old", 0), ("young", 0)]


@LOOPS
def test_the_oldest_is_never_preempted_while_a_younger_one_runs(overlap: bool) -> None:
    load = FakeLoad(fake_engine(slabs=20, units_per_slab=1, groups=ATTENTION, overlap=overlap))
    requests = [request(f"r{i}", prompt=5 + i, max_tokens=25 + 3 * (i % 2)) for i in range(5)]
    load.add(*requests)
    lives: dict[str, int] = {}
    while not load.engine.idle:
        oldest = min(load.engine._sequences.values(), key=lambda s: s.order, default=None)
        load.step()
        for sequence in load.engine._sequences.values():
            before = lives.get(sequence.request.id, 0)
            assert sequence is not oldest or sequence.preemptions == before
            lives[sequence.request.id] = sequence.preemptions
    load.finish()
    assert load.engine.scheduler.preempted > 2


@LOOPS
def test_who_waits_for_memory_is_not_overtaken_by_younger_ones(overlap: bool) -> None:
    """While the older one lacks a page, no younger one goes on for more than the step that is in flight."""
    load = FakeLoad(fake_engine(slabs=12, units_per_slab=1, groups=ATTENTION, overlap=overlap))
    load.add(request("old", prompt=8, max_tokens=30), request("young", prompt=6, max_tokens=30))
    last, missed = 0, 0
    while ("old", 0) not in load.finished:
        load.step()
        if (n := len(load.tokens["old", 0])) == last and n:
            missed += 1
        last = n
    assert missed <= (2 if overlap else 0)
    load.finish()


@LOOPS
def test_the_urgent_one_takes_memory_from_the_one_that_was_there_first(overlap: bool) -> None:
    load = FakeLoad(fake_engine(slabs=13, units_per_slab=1, groups=ATTENTION, overlap=overlap))
    load.add(request("first", prompt=6, max_tokens=26))
    load.step()
    load.add(request("urgent", prompt=6, max_tokens=26, priority=-1))
    load.finish()
    assert list(load.finished) == [("urgent", 0), ("first", 0)]


@LOOPS
def test_memory_cut_up_by_others_that_left_does_not_end_a_sequence(overlap: bool) -> None:
    """Alone, but with its units strewn over slabs: it makes room by starting over, and gets no error."""
    for slabs in range(8, 30):
        for stay in range(3):
            engine = fake_engine(slabs=slabs, units_per_slab=4, groups=HYBRID, max_seqs=6, overlap=overlap)
            length = max((n for n in range(1, 120) if engine.scheduler.can_ever_fit(_probe(engine), n)), default=0)
            if length < 12:
                continue
            load = FakeLoad(engine)
            load.add(*(request(f"r{i}", prompt=3, max_tokens=length - 3 if i == stay else 2) for i in range(4)))
            load.finish()


def _probe(engine):  # type: ignore[no-untyped-def]
    from plait_engine.sequence import Sequence
    from plait_engine.state.sequence_state import SequenceState

    return Sequence(request("probe", 1), 0, 0, SequenceState(engine.ledger.groups))


@LOOPS
def test_a_preempted_prompt_longer_than_a_step_is_computed_again_in_chunks(overlap: bool) -> None:
    load = FakeLoad(fake_engine(slabs=26, units_per_slab=1, groups=ATTENTION, overlap=overlap, budget=5))
    load.add(request("old", prompt=40, max_tokens=30), request("young", prompt=30, max_tokens=20))
    load.finish()
    assert load.engine.scheduler.preempted >= 1
    starts = [row.start for plan in plans(load.engine) for row in plan.rows if row.sequence.request.id == "young"]
    assert starts.count(0) >= 2
    assert PAGE * 25 >= 70
