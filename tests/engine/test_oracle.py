"""Whatever runs beside it, however its prompt is cut, and wherever it lies: a request gets the answer it gets alone."""

import random
from collections.abc import Iterable
from dataclasses import replace
from itertools import permutations

import pytest
import torch
from torch import Tensor

from plait_engine.engine import Engine
from plait_engine.models import registry
from plait_engine.request import Request
from plait_engine.sequence import Sequence
from plait_engine.state.ledger import Poison
from plait_engine.state.spec import GRANULE_BYTES
from tests.engine.tiny import (
    ARCHITECTURES,
    CONFIGS,
    CONV,
    EDGE,
    KINDS,
    PADDING,
    PAGE,
    VOCAB,
    WINDOW,
    Load,
    ask,
    assert_same,
    check_against_oracle,
    greedy,
    oracle,
    prompt_of,
    run,
    seeded,
    table_of,
    tiny_engine,
)

POISONS = pytest.mark.parametrize("poison", [Poison.NAN, Poison.LARGE])
LOOPS = pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlapped"])
every_architecture = pytest.mark.parametrize("name", ARCHITECTURES)
every_kind = pytest.mark.parametrize("name", KINDS)


def mixed_requests(count: int, seed: int, longest: int = 40) -> list[Request]:
    """Prompts and answers of all lengths, greedy and seeded, one or several sequences."""
    rng = random.Random(seed)
    requests = []
    for i in range(count):
        prompt = prompt_of(rng.choice([1, 2, 3, rng.randint(1, longest)]), seed=rng.randrange(5))
        tokens = rng.randint(1, 10)
        sampling = seeded(tokens, seed=i) if rng.random() < 0.3 else greedy(tokens)
        requests.append(ask(f"r{i}", prompt, sampling, n=rng.choice([1, 1, 1, 2])))
    return requests


@POISONS
@every_architecture
def test_a_mixed_load_gives_the_oracles_answers(name: str, poison: Poison) -> None:
    engine = tiny_engine(name, poison=poison)
    requests = mixed_requests(10, seed=1)
    check_against_oracle(name, run(engine, *requests), requests)


@every_kind
def test_the_overlapped_loop_gives_the_same_deltas_as_the_plain_one(name: str) -> None:
    """Seeds, stop tokens, end tokens, lengths, penalties that need the last token, and preemption."""
    requests = [
        *mixed_requests(6, seed=2),
        ask("eos", prompt_of(5), seeded(30, seed=1, ignore_eos=False, logit_bias={2: 3.0})),
        ask("stop", prompt_of(9), seeded(30, seed=2, stop_token_ids=tuple(range(60, 80)))),
        ask("penalties", prompt_of(7), greedy(8, repetition_penalty=1.3, frequency_penalty=0.5, min_tokens=4)),
    ]
    kept = []
    for overlap in (False, True):
        engine = tiny_engine(name, overlap=overlap, slabs=30 if name != "lfm2" else 60)
        kept.append(run(engine, *requests))
    plain, overlapped = kept
    assert plain.keys() == overlapped.keys()
    for key, answer in plain.items():
        assert_same(overlapped[key], answer)
        assert overlapped[key].stop_reason == answer.stop_reason


def test_these_tests_have_a_model_of_every_architecture() -> None:
    assert {config["model_type"] for config in CONFIGS.values()} == set(registry.ARCHITECTURES)


# Chunks (CASES 8, 27, 28) --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [3, 5, PAGE - 1, PAGE, PAGE + 1, 2 * WINDOW - 1, 2 * WINDOW, 2 * WINDOW + 1])
@every_kind
def test_a_prompt_cut_at_any_border_gives_the_logits_of_the_whole_prompt(name: str, budget: int) -> None:
    """CASES 8: a prompt of five windows, budgets around every grid; the state goes on from chunk to chunk."""
    request = ask("r", prompt_of(5 * WINDOW), greedy(3, prompt_logprobs=VOCAB))
    engine = tiny_engine(name, budget=budget, max_seqs=2)
    answer = run(engine, request)["r", 0]
    expected = oracle(name, request)[0]
    assert_same(answer, expected)
    got, want = (table_of(a.prompt_logprobs or ()) for a in (answer, expected))
    assert got.shape == (5 * WINDOW - 1, VOCAB)
    assert float((got - want).abs().max()) < 1e-4


@every_kind
def test_prompts_of_edge_lengths_give_the_oracles_answers(name: str) -> None:
    requests = [ask(f"r{n}", prompt_of(n), greedy(CONV + 2)) for n in EDGE]
    check_against_oracle(name, run(tiny_engine(name), *requests), requests)


@every_kind
def test_pieces_fed_one_after_another_give_the_logits_of_all_at_once(name: str) -> None:
    """CASES 27: pieces of 10, 7, 1 and 4 tokens on a warm state, against 22 at once."""
    engine = tiny_engine(name)
    load = Load(engine)
    request = ask("r", prompt_of(22), greedy(1, prompt_logprobs=VOCAB))
    load.add(request)
    for piece in (10, 7, 1, 4):
        engine.scheduler.limits = replace(engine.scheduler.limits, max_batch_tokens=piece)
        load.step()
    answer = load.finish()["r", 0]
    assert load.steps == 4
    expected = oracle(name, request)[0]
    assert_same(answer, expected)
    assert float((table_of(answer.prompt_logprobs or ()) - table_of(expected.prompt_logprobs or ())).abs().max()) < 1e-4


@every_architecture
def test_decodes_first_chunks_and_middle_chunks_share_a_step_in_any_order(name: str) -> None:
    """CASES 28: two decodes, two first chunks and a middle chunk in one step, arrived in all kinds of order."""
    pieces = [("d0", 3), ("d1", 6), ("f0", 7), ("f1", 5), ("m", 30)]
    for order in list(permutations(range(5)))[:: 30 if name in KINDS else 60]:
        engine = tiny_engine(name, budget=19)
        load = Load(engine)
        early = [pieces[i] for i in order if pieces[i][0] in ("d0", "d1", "m")]
        late = [pieces[i] for i in order if pieces[i][0] in ("f0", "f1")]
        requests = {id: ask(id, prompt_of(n), greedy(6)) for id, n in pieces}
        load.add(*(requests[id] for id, _ in early))
        while not (load.answers["d0", 0].tokens and load.answers["d1", 0].tokens):
            load.step()
        load.add(*(requests[id] for id, _ in late))
        answers = load.finish()
        check_against_oracle(name, answers, requests.values())


# Neighbours (CASES 25, 26) -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [4, 8])
@every_architecture
def test_identical_prompts_at_once_give_one_distinct_answer(name: str, count: int) -> None:
    """DISTINCT."""
    engine = tiny_engine(name, max_seqs=8, budget=64)
    requests = [ask(f"r{i}", prompt_of(11), greedy(8)) for i in range(count)]
    answers = run(engine, *requests)
    assert len({tuple(answer.tokens) for answer in answers.values()}) == 1
    check_against_oracle(name, answers, requests)


@LOOPS
@every_kind
def test_rows_that_change_hands_out_of_order_carry_nothing_over(name: str, overlap: bool) -> None:
    """CASES 25: each request has its own prompt; rows and slots are freed and taken so that their numbers differ."""
    engine = tiny_engine(name, max_seqs=4, overlap=overlap)
    load = Load(engine)
    requests = [ask(f"r{i}", prompt_of(6 + i % 3, seed=i), greedy(2 + (5 * i) % 7)) for i in range(14)]
    load.add(*requests)
    orders = set()

    def note() -> None:
        slots = [tuple(s.state.slots.values()) for s in engine.scheduler.running if s.state.slots]
        rows = [s.row for s in engine.scheduler.running]
        if slots:
            orders.add(tuple(sorted(range(len(slots)), key=lambda i: slots[i])) == tuple(rows))

    check_against_oracle(name, load.finish(note), requests)
    if name != "gemma3":
        assert False in orders


@pytest.mark.parametrize("neighbour", [1, 7, 64])
@every_architecture
def test_the_answer_does_not_depend_on_a_neighbours_length(name: str, neighbour: int) -> None:
    """CASES 26: alone, and beside prompts of 1, 7 and 64 tokens."""
    request = ask("r", prompt_of(10), greedy(6))
    alone = oracle(name, request)[0]
    engine = tiny_engine(name, budget=80)
    beside = run(engine, ask("n", prompt_of(neighbour, seed=9), greedy(6)), request)["r", 0]
    assert float((beside.logprobs - alone.logprobs).abs().max()) < 1e-5
    assert beside.tokens == alone.tokens


@pytest.mark.parametrize("max_seqs", [1, 4, 16])
@every_kind
def test_the_same_greedy_load_gives_the_same_answers_whatever_may_run_at_once(name: str, max_seqs: int) -> None:
    """CASES 29: five times the same; between numbers of sequences, equal up to rounding."""
    requests = [ask(f"r{i}", prompt_of(3 + 2 * i, seed=i), greedy(5)) for i in range(8)]
    first = None
    for _ in range(5 if max_seqs == 4 else 2):
        answers = run(tiny_engine(name, max_seqs=max_seqs, budget=24), *requests)
        check_against_oracle(name, answers, requests)
        logprobs = {key: answer.logprobs for key, answer in answers.items()}
        first = first or logprobs
        assert all(bool((logprobs[key] == first[key]).all()) for key in logprobs), "same steps, same bits"


# Slots and pages of others (CASES 3, 4, 24) --------------------------------------------------------------------------


@POISONS
@every_kind
def test_fresh_requests_start_from_nothing_whoever_had_their_slot(name: str, poison: Poison) -> None:
    """CASES 3: three rows, 50 requests of 1 to 5 tokens churning beside two running decodes."""
    engine = tiny_engine(name, max_seqs=4, poison=poison)
    load = Load(engine)
    streams = [ask(f"s{i}", prompt_of(5, seed=i), greedy(60)) for i in range(2)]
    churn = [ask(f"c{i}", prompt_of(1 + i % 5, seed=i), greedy(2)) for i in range(50)]
    load.add(*streams)
    for request in churn:
        load.add(request)
        load.step()
    check_against_oracle(name, load.finish(), [*streams, *churn])


@every_architecture
def test_padded_decodes_write_nothing_that_the_batch_does_not_own(name: str) -> None:
    """CASES 24: every step is padded to 8 beside three live requests; whatever else is in the arena stays as it was."""
    engine = tiny_engine(name, max_seqs=6, padding=PADDING)
    load = Load(engine)
    parked = ask("parked", prompt_of(9, seed=7), greedy(20))
    requests = [ask(f"r{i}", prompt_of(4 + i, seed=i), greedy(12)) for i in range(3)]
    load.add(parked, *requests)
    while any(not answer.tokens for answer in load.answers.values()):
        load.step()
    park = next(s for s in engine.scheduler.running if s.request.id == "parked")
    engine.scheduler.running.remove(park)  # It keeps its slot and pages, and no step names it.
    arena = engine.ledger.arena.bytes
    for _ in range(5):
        owned = _owned_bytes(engine, engine.scheduler.running)
        before = arena.clone()
        load.step()
        owned |= _owned_bytes(engine, engine.scheduler.running)
        changed = arena != before
        assert bool(changed.any())
        assert not bool((changed & ~owned).any())
    engine.scheduler.running.append(park)
    engine.scheduler.running.sort(key=lambda s: s.order)
    check_against_oracle(name, load.finish(), [parked, *requests])


def _owned_bytes(engine: Engine, sequences: Iterable[Sequence]) -> Tensor:
    """Mask of the arena's bytes that belong to the sequences or to the padding row."""
    mask = torch.zeros(engine.ledger.arena.n_bytes, dtype=torch.bool)
    for units in (engine.ledger.reserved, *(s.state.owned() for s in sequences)):
        for group, addresses in units.items():
            for unit in addresses:
                start = unit * GRANULE_BYTES
                mask[start : start + engine.ledger.groups[group].unit_bytes] = True
    return mask


@every_kind
def test_losing_the_state_shows_in_the_logits(name: str) -> None:
    """SENSITIVE: the control for all of the above. Slots zeroed (or pages, where there are no slots) in mid-decode."""
    engine = tiny_engine(name, poison=Poison.OFF)
    load = Load(engine)
    request = ask("r", prompt_of(20), greedy(6))
    load.add(request)
    while len(load.answers["r", 0].tokens) < 3:
        load.step()
    state = engine.scheduler.running[0].state
    lost = state.slots or {group: run.pages for group, run in state.runs.items()}
    for group, units in lost.items():
        for unit in units:
            engine.ledger.arena.unit(unit, engine.ledger.groups[group].unit_bytes).zero_()
    answer = load.finish()["r", 0]
    expected = oracle(name, request)[0]
    assert float((answer.logprobs[3] - expected.logprobs[3]).abs().max()) > 100 * 1e-4
