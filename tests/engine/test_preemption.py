"""CASES 30 with a real model: who was preempted starts over from nothing, and nobody can tell from the answer."""

import random

import pytest

from plait_engine.engine import Engine
from plait_engine.state.ledger import Poison
from tests.engine.tiny import (
    KINDS,
    VOCAB,
    Load,
    ask,
    check_against_oracle,
    greedy,
    oracle,
    prompt_of,
    seeded,
    table_of,
    tiny_engine,
)

LOOPS = pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlapped"])
SLABS = {"granite": (14, 10), "qwen3_5": (14, 10), "gemma3": (14, 11), "lfm2": (28, 17)}
"""So few slabs that the younger of two is preempted once, and more than once."""


def shuffle_free_units(engine: Engine) -> None:
    """So that who comes back does not get the memory it had before."""
    order = random.Random(engine.steps)
    order.shuffle(engine.ledger.slabs._free)
    for pool in engine.ledger.pools.values():
        for units in pool._free.values():
            order.shuffle(units)


@LOOPS
@pytest.mark.parametrize("often", [False, True], ids=["once", "often"])
@pytest.mark.parametrize("name", KINDS)
def test_preempted_sequences_give_the_oracles_answer(name: str, often: bool, overlap: bool) -> None:
    engine = tiny_engine(name, slabs=SLABS[name][often], overlap=overlap, poison=Poison.NAN)
    sampling = greedy(24, prompt_logprobs=VOCAB)
    requests = [
        ask("old", prompt_of(9, seed=1), sampling),
        ask("young", prompt_of(7, seed=2), seeded(24, seed=5, prompt_logprobs=VOCAB)),
        ask("third", prompt_of(5, seed=3), greedy(20, repetition_penalty=1.2, presence_penalty=0.3)),
    ]
    load = Load(engine)
    load.add(*requests)
    answers = load.finish(lambda: shuffle_free_units(engine))
    assert engine.scheduler.preempted >= 1 + often
    check_against_oracle(name, answers, requests)
    for request in requests:
        answer = answers[request.id, 0]
        assert len(answer.tokens) == len(answer.entries) == answer.deltas == request.sampling.max_tokens
        assert [entry.token_id for entry in answer.entries] == answer.tokens
    for request in requests[:2]:
        scores = answers[request.id, 0].prompt_logprobs
        assert scores is not None
        assert len(scores) == len(request.prompt)
        expected = table_of(oracle(name, request)[0].prompt_logprobs or ())
        assert float((table_of(scores) - expected).abs().max()) < 1e-4


@pytest.mark.parametrize("after", [1, 2, 4])
def test_prompt_scores_of_a_prompt_that_was_preempted_half_way_are_whole(after: int) -> None:
    """Preempted in its prompt, before it had given anything."""
    engine = tiny_engine("granite", budget=5)
    request = ask("r", prompt_of(22, seed=2), greedy(2, prompt_logprobs=VOCAB))
    load = Load(engine)
    load.add(request)
    for _ in range(after):
        load.step()
    engine.scheduler._preempt(engine.scheduler.running[0])
    answers = load.finish()
    check_against_oracle("granite", answers, [request])
    scores, expected = (a.prompt_logprobs or () for a in (answers["r", 0], oracle("granite", request)[0]))
    assert len(scores) == 22
    assert float((table_of(scores) - table_of(expected)).abs().max()) < 1e-4


@pytest.mark.parametrize("name", KINDS)
def test_a_sequence_that_comes_back_to_its_old_row_uses_its_new_memory(name: str) -> None:
    engine = tiny_engine(name)
    requests = [ask(f"r{i}", prompt_of(5 + i, seed=i), greedy(14)) for i in range(3)]
    load = Load(engine)
    load.add(*requests)
    for _ in range(6):
        load.step()
    for _ in range(2):
        sequence = engine.scheduler.running[1]
        row, owned = sequence.row, sequence.state.owned()
        engine.scheduler._preempt(sequence)
        shuffle_free_units(engine)
        load.step()
        assert sequence.row == row
        assert sequence.state.owned() != owned
        load.step()
    check_against_oracle(name, load.finish(), requests)
