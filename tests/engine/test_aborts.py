"""CASES 37, 38 and many at once, with a real model: aborts in any phase, and what stays gives the oracle's answers."""

import random

import pytest

from tests.engine.tiny import (
    ARCHITECTURES,
    Load,
    Request,
    ask,
    assert_same,
    books,
    check_against_oracle,
    greedy,
    oracle,
    prompt_of,
    seeded,
    tiny_engine,
)

LOOPS = pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlapped"])


@LOOPS
@pytest.mark.parametrize("after", range(10))
def test_an_abort_at_any_chunk_or_decode_leaves_the_neighbours_right(after: int, overlap: bool) -> None:
    """A prompt of five chunks beside a running stream and a short prompt; whoever comes next gets the same memory."""
    engine = tiny_engine("granite", overlap=overlap, max_seqs=3)
    load = Load(engine)
    stream = ask("stream", prompt_of(5), greedy(20))
    load.add(stream)
    load.step()
    load.step()
    load.add(ask("victim", prompt_of(5 * 12, seed=1), greedy(20)))
    for _ in range(after):
        load.step()
    engine.abort("victim")
    load.answers.pop(("victim", 0))
    heirs = [ask(f"heir{i}", prompt_of(7 + i, seed=2), greedy(3)) for i in range(3)]
    load.add(*heirs)
    check_against_oracle("granite", load.finish(), [stream, *heirs])


def mixed_load(rng: random.Random, count: int, longest: int = 60) -> list[Request]:
    """Short and long prompts, some of them the same; greedy, seeded, penalised; one or several sequences."""
    requests = []
    for i in range(count):
        length = rng.choice([1, 2, 7, rng.randint(1, longest)])
        tokens = rng.randint(1, 12)
        sampling = rng.choice(
            [
                greedy(tokens),
                greedy(tokens, ignore_eos=False, stop_token_ids=(5, 6, 7)),
                greedy(tokens, frequency_penalty=0.4, repetition_penalty=1.1),
                seeded(tokens, seed=i % 3, top_p=0.9),
                seeded(tokens, seed=i % 3, top_k=20, min_p=0.01),
            ]
        )
        requests.append(ask(f"r{i}", prompt_of(length, seed=rng.randrange(2)), sampling, n=rng.choice([1, 1, 1, 2])))
    return requests


@LOOPS
@pytest.mark.parametrize("name", ["granite", "qwen3_5_moe", "gemma3"])
def test_sixty_four_mixed_requests_at_once_give_the_oracles_answers(name: str, overlap: bool) -> None:
    engine = tiny_engine(name, overlap=overlap, max_seqs=24, budget=40)
    requests = mixed_load(random.Random(64), 64)
    load = Load(engine)
    load.add(*requests)
    check_against_oracle(name, load.finish(), requests)


@LOOPS
@pytest.mark.parametrize(
    ("name", "aborts"),
    [("granite", 500), *(pytest.param(name, 500, marks=pytest.mark.slow) for name in ARCHITECTURES[1:])],
)
def test_random_aborts_leave_the_books_and_the_others_right(name: str, aborts: int, overlap: bool) -> None:
    rng = random.Random(aborts)
    engine = tiny_engine(name, overlap=overlap, max_seqs=8, budget=32, slabs=80)
    load = Load(engine)
    kept: dict[str, Request] = {}
    added = done = 0
    while done < aborts:
        while len(engine._sequences) < 12:
            request = mixed_load(rng, 1)[0]
            request = ask(f"a{added}", request.prompt, request.sampling, n=request.n)
            load.add(request)
            kept[request.id] = request
            added += 1
        if rng.random() < 0.5:
            load.step()
        id, index = rng.choice(list(engine._sequences))
        whole = rng.random() < 0.5
        engine.abort(id, None if whole else index)
        kept.pop(id, None)
        done += 1
        engine.check()
    load.finish()
    books(engine)
    assert len(kept) > aborts // 20
    for request in list(kept.values())[::3]:
        for index, expected in enumerate(oracle(name, request)):
            assert_same(load.answers[request.id, index], expected)
