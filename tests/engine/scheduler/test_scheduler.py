"""What a step holds, who is admitted, and what is refused."""

import pytest

from plait_engine.engine import CannotFit
from plait_engine.request import Request, SamplingParams
from tests.engine.scheduler.fake import ATTENTION, FakeLoad, fake_engine, plans, request
from tests.engine.tiny import PAGE


@pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlapped"])
def test_a_mixed_load_gives_every_sequence_its_tokens(overlap: bool) -> None:
    load = FakeLoad(fake_engine(overlap=overlap, max_seqs=4))
    load.add(*(request(f"r{i}", prompt=1 + 7 * i, max_tokens=1 + i, n=1 + i % 3) for i in range(8)))
    load.finish()


def test_every_running_decode_is_in_every_step_and_comes_first() -> None:
    load = FakeLoad(fake_engine())
    load.add(*(request(f"d{i}", prompt=2, max_tokens=30) for i in range(3)))
    for _ in range(3):
        load.step()
    load.add(request("long", prompt=100))
    while any(len(tokens) < 30 for key, tokens in load.tokens.items() if key[0] != "long"):
        load.step()
        ids = [row.sequence.request.id for row in plans(load.engine)[-1].rows]
        assert ids[:3] == ["d0", "d1", "d2"]
    load.finish()


def test_the_budget_is_filled_while_prompts_wait() -> None:
    load = FakeLoad(fake_engine(budget=13))
    load.add(*(request(f"r{i}", prompt=40, max_tokens=1) for i in range(4)))
    load.finish()
    assert [plan.tokens for plan in plans(load.engine)[:-1]] == [13] * (len(plans(load.engine)) - 1)


def test_the_queue_is_not_overtaken() -> None:
    """The first in the queue does not fit yet; a small one behind it would, and waits all the same."""
    load = FakeLoad(fake_engine(slabs=30, units_per_slab=1, groups=ATTENTION))
    load.add(request("running", prompt=40, max_tokens=20))
    load.step()
    load.add(request("big", prompt=80, max_tokens=1), request("small", prompt=4, max_tokens=1))
    while ("running", 0) not in load.finished:
        load.step()
        assert not load.tokens["small", 0]
    load.finish()


def test_higher_priority_goes_first_whenever_it_came() -> None:
    load = FakeLoad(fake_engine(max_seqs=1))
    load.add(request("a", prompt=5), request("b", prompt=5), request("urgent", prompt=5, priority=-1))
    load.finish()
    assert list(load.finished) == [("urgent", 0), ("a", 0), ("b", 0)]


def test_admission_takes_everything_or_nothing() -> None:
    """Pages in plenty, slots for three: ten requests all finish, and three at most run (CASES 32)."""
    engine = fake_engine(slabs=7 + 12 + 12, units_per_slab=1, max_seqs=8)
    load = FakeLoad(engine)
    load.add(*(request(f"r{i}", prompt=9, max_tokens=3) for i in range(10)))
    before = engine.ledger.slabs.free
    most = 0
    while not engine.idle:
        load.step()
        most = max(most, len(engine.scheduler.running))
    load.finish()
    assert 1 < most < 8
    assert engine.ledger.slabs.free == before


@pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlapped"])
@pytest.mark.parametrize("more", [0, 1, 5])
def test_prompts_up_to_the_pool_finish_and_beyond_it_are_refused(more: int, overlap: bool) -> None:
    """CASES 33: prompt lengths from the pool's size - 3 pages to + 1 token."""
    pages = 12
    refused = 0
    for length in range((pages - 3) * PAGE, pages * PAGE + 2):
        engine = fake_engine(slabs=pages + 1, units_per_slab=1, groups=ATTENTION, overlap=overlap)
        load = FakeLoad(engine)
        if length + more > pages * PAGE:
            with pytest.raises(CannotFit, match="do not fit"):
                load.add(request("r", prompt=length, max_tokens=more))
            assert engine.idle
            refused += 1
        else:
            load.add(request("r", prompt=length, max_tokens=more))
        load.finish()
    assert refused == 1 + more


def test_what_is_longer_than_the_model_allows_is_refused_and_changes_nothing() -> None:
    engine = fake_engine(max_model_len=20)
    for prompt, message in ((0, "no tokens"), (20, "leave room"), (21, "maximum context length is 20")):
        with pytest.raises(CannotFit, match=message):
            engine.add(request("r", prompt=prompt, n=3))
    bad = {"logit_bias": {1000: 1.0}}, {"logit_bias": {-1: 1.0}}, {"stop_token_ids": (5, 1000)}
    for sampling in bad:
        with pytest.raises(CannotFit, match="vocabulary of 1000"):
            engine.add(request("r", prompt=3, **sampling))
    with pytest.raises(CannotFit, match="vocabulary of 1000"):
        engine.add(Request(id="r", prompt=(3, 1000), sampling=SamplingParams()))
    assert engine.idle
    assert not len(engine.scheduler.waiting)


def test_sequences_end_at_the_model_length() -> None:
    load = FakeLoad(fake_engine(max_model_len=20))
    load.add(*(request(f"r{n}", prompt=n, max_tokens=50) for n in (1, 18, 19)))
    load.finish()
    assert {id: len(tokens) for (id, _), tokens in load.tokens.items()} == {"r1": 19, "r18": 2, "r19": 1}


def test_nothing_planned_with_work_at_hand_is_an_error_and_no_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    load = FakeLoad(fake_engine())
    load.add(request("a", prompt=5), request("b", prompt=5))
    monkeypatch.setattr(load.engine.scheduler, "_admit", lambda: None)
    errors = [load.engine.step()[0] for _ in range(2)]
    assert [delta.request_id for delta in errors] == ["a", "b"]
    assert all(delta.error and delta.finish_reason == "error" for delta in errors)
    assert load.engine.idle
    load.engine.check()
