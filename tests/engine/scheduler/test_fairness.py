"""CASES 34: bounds on who waits for whom, counted in steps."""

import math

import pytest

from tests.engine.scheduler.fake import FakeLoad, fake_engine, plans, request, step_of_first_token

LOOPS = pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlapped"])
BUDGET = 16


@LOOPS
def test_a_long_prompt_delays_a_running_stream_by_no_step(overlap: bool) -> None:
    """Every step gives the stream a token, and no step is longer than one budget: one chunk is all it waits for."""
    load = FakeLoad(fake_engine(budget=BUDGET, max_model_len=2000, slabs=2000, overlap=overlap))
    load.add(request("stream", prompt=3, max_tokens=200))
    step_of_first_token(load, "stream")
    load.add(request("long", prompt=1500, max_tokens=1))
    while ("stream", 0) not in load.finished:
        before = len(load.tokens["stream", 0])
        load.step()
        assert len(load.tokens["stream", 0]) == before + 1
        assert plans(load.engine)[-1].tokens <= BUDGET
    load.finish()


@LOOPS
def test_a_stream_of_long_prompts_does_not_starve_a_short_one(overlap: bool) -> None:
    """Half of what the decodes leave of each step is for the prompt with the least to do."""
    load = FakeLoad(fake_engine(budget=BUDGET, max_seqs=8, max_model_len=1000, slabs=4000, overlap=overlap))
    load.add(*(request(f"long{i}", prompt=600, max_tokens=2) for i in range(4)))
    for _ in range(3):
        load.step()
    load.add(request("short", prompt=40, max_tokens=1))
    load.add(*(request(f"later{i}", prompt=600, max_tokens=2) for i in range(10)))
    assert step_of_first_token(load, "short") <= math.ceil(40 / (BUDGET // 2)) + 1 + overlap
    load.finish()


@LOOPS
def test_a_short_prompt_behind_all_places_taken_waits_for_the_first_that_is_done(overlap: bool) -> None:
    load = FakeLoad(fake_engine(budget=BUDGET, max_seqs=20, max_model_len=1000, slabs=8000, overlap=overlap))
    load.add(*(request(f"long{i}", prompt=200, max_tokens=1) for i in range(8)))
    load.step()
    load.add(request("short", prompt=8, max_tokens=1))
    assert step_of_first_token(load, "short") <= math.ceil(200 / (BUDGET // 2)) + 2 + overlap
    load.finish()


@LOOPS
def test_a_stream_of_short_prompts_does_not_starve_a_long_one(overlap: bool) -> None:
    """The oldest prompt has half of what the decodes leave, whatever comes behind it."""
    load = FakeLoad(fake_engine(budget=BUDGET, max_seqs=8, max_model_len=1000, slabs=4000, overlap=overlap))
    load.add(request("long", prompt=400, max_tokens=1))
    shorts, steps = 0, 0
    while not load.tokens["long", 0]:
        while len(load.engine.scheduler.waiting) < 4:
            load.add(request(f"short{shorts}", prompt=15, max_tokens=1))
            shorts += 1
        load.step()
        steps += 1
    assert steps <= math.ceil(400 / (BUDGET // 2)) + 1 + overlap
    assert shorts > steps // 3, "the short ones were served beside it"
    load.finish()


@LOOPS
def test_decodes_leave_the_oldest_prompt_room_even_when_rows_are_short(overlap: bool) -> None:
    """As many rows as the budget has tokens: decodes can never take the last token from a prompt."""
    load = FakeLoad(fake_engine(budget=4, max_seqs=4, max_model_len=400, slabs=2000, overlap=overlap))
    load.add(*(request(f"d{i}", prompt=1, max_tokens=100) for i in range(3)))
    for _ in range(4):
        load.step()
    load.add(request("prompt", prompt=20, max_tokens=1))
    assert step_of_first_token(load, "prompt") <= 20 + 1 + overlap
    load.finish()
