"""CASES 1, 5, 7, 10 to 16, 18, 19, 21, 22: what is found, how much is used of it, and that answers are cold ones'."""

import itertools

import pytest
import torch

from tests.engine.reuse.client import INTERVAL, MODELS, Client
from tests.engine.tiny import EDGE, PAGE, prompt_of

EACH = pytest.mark.parametrize("name", MODELS)


@EACH
@pytest.mark.parametrize("budget", [3, INTERVAL - 1, INTERVAL, INTERVAL + 1, 13])
def test_case_1_a_checkpoint_on_a_border_is_the_state_at_that_border(name: str, budget: int) -> None:
    client = Client(name, budget=budget)
    prompt = prompt_of(27, seed=1)
    assert client.ask(prompt) == 0
    assert client.ask(prompt[:16] + prompt_of(5, seed=2)) == 16
    assert client.ask(prompt + prompt_of(4, seed=3)) >= 26


@EACH
def test_case_1_at_every_length(name: str) -> None:
    client = Client(name)
    for length in EDGE:
        prompt = prompt_of(length, seed=length)
        assert client.ask(prompt) == 0
        # The whole prompt, and all of its answer but the last token, whose state nobody has computed.
        assert client.ask(prompt + client.reply + (9,)) == length + 3


@EACH
@pytest.mark.parametrize("overlap", [False, True])
def test_case_5_a_prompt_that_is_known_as_a_whole(name: str, overlap: bool) -> None:
    client = Client(name, overlap=overlap)
    for length in EDGE:
        cached = [client.ask(prompt_of(length, seed=5), max_tokens=count) for count in (1, 4, 4)]
        assert cached[1:] == [length - 1] * 2


@EACH
@pytest.mark.parametrize("suffix", [1, 2, 3])
def test_case_7_going_on_from_an_entry_leaves_it_as_it_is(name: str, suffix: int) -> None:
    client = Client(name)
    prompt = prompt_of(17, seed=7)
    client.ask(prompt, max_tokens=1)
    point = client.match(prompt).best
    assert point is not None
    assert point.checkpoint is not None
    before = _contents(client, prompt)
    for seed in range(3):
        assert client.ask(prompt[:16] + prompt_of(suffix, seed=seed + 20), max_tokens=6) == 16
    assert bool(torch.equal(_contents(client, prompt), before))


def _contents(client: Client, prompt: tuple[int, ...]) -> torch.Tensor:
    """All bytes that a resume from position 16 reads, which is the border of a page."""
    engine, point = client.engine, client.match(prompt).best
    assert point is not None
    assert point.checkpoint is not None
    assert point.position == 16
    assert point.position % PAGE == 0
    tree, ledger = engine.scheduler.cache.tree, engine.ledger
    units = point.checkpoint.owned() | {g.id: tree.pages_up_to(point, g.id) for g in ledger.groups if g.full}
    views = [ledger.arena.units(g.unit_bytes)[torch.tensor(units[g.id])].flatten() for g in ledger.groups]
    return torch.cat(views).clone()


@EACH
def test_case_10_history_without_its_reasoning_is_another_key(name: str) -> None:
    client = Client(name)
    question, reasoning, answer = prompt_of(18, seed=1), prompt_of(9, seed=2), prompt_of(6, seed=3)
    client.ask(question + reasoning + answer, marks=(18,))
    assert client.ask(question + answer + prompt_of(5, seed=4)) == 18
    for node in client.engine.scheduler.cache.tree.nodes():
        if node.checkpoint is not None:
            assert node.checkpoint.position == node.end == sum(len(above.tokens) for above in node.path())


@EACH
def test_case_11_a_tail_of_exactly_one_token(name: str) -> None:
    client = Client(name)
    for k in (1, 2, 3):
        prompt = prompt_of(k * INTERVAL + 1, seed=k)
        client.ask(prompt)
        assert client.ask((*prompt[:-1], 5)) == k * INTERVAL


@EACH
def test_case_12_a_budget_smaller_than_everything(name: str) -> None:
    client = Client(name, budget=3)
    prompt = prompt_of(50, seed=1)
    client.ask(prompt)
    assert {point.position for point in client.match((*prompt, 9)).points} >= {16, 32, 48, 49}
    assert client.ask(prompt + prompt_of(3, seed=2)) >= 49


@EACH
def test_case_13_what_many_share_is_reused_from_the_second_sighting_on(name: str) -> None:
    shared = prompt_of(40, seed=1)
    for unique in (1, 2, 5, 17, 40):
        client = Client(name, interval=1000)
        cached = [client.ask((*shared, 10 + i, *prompt_of(unique - 1, seed=10 + i)), max_tokens=1) for i in range(5)]
        ends_there = unique == 1
        assert cached == [0, 40 * ends_there, 40, 40, 40]
        lost = client.engine.counters()["plait_prefix_lost_tokens_total"]
        wanted = {} if ends_there else {"reason=no_checkpoint": 40}
        assert {reason: tokens for reason, tokens in lost.items() if tokens} == wanted


@EACH
def test_case_14_and_15_short_identical_prompts_hit_from_the_second_on(name: str) -> None:
    client = Client(name, interval=1000)
    assert [client.ask(prompt_of(20, seed=3)) for _ in range(3)] == [0, 19, 19]


@EACH
@pytest.mark.parametrize("changed", [1, 2, 3, 4, 5])
def test_case_16_parting_inside_the_window_falls_back_to_the_resume_point_before(name: str, changed: int) -> None:
    client = Client(name)
    prompt = prompt_of(40, seed=1)
    client.ask(prompt)
    assert client.ask(prompt[:-changed] + tuple((t + 1) % 100 + 3 for t in prompt[-changed:])) == (
        39 if changed == 1 else 32
    )


@EACH
@pytest.mark.parametrize("length", [6, 30])
def test_case_18_a_second_turn_computes_what_is_new(name: str, length: int) -> None:
    client = Client(name)
    first = prompt_of(length, seed=1)
    client.ask(first)
    history = first + client.reply
    assert client.ask(history + prompt_of(5, seed=2)) == len(history) - 1


@EACH
def test_case_19_rewinding_to_an_earlier_turn(name: str) -> None:
    client, history, ends = Client(name, interval=1000), prompt_of(9, seed=1), []
    for turn in range(4):
        client.ask(history)
        ends.append(history)
        history += client.reply + prompt_of(4, seed=10 + turn)
    assert client.ask(ends[2]) == len(ends[2]) - 1


@EACH
@pytest.mark.parametrize("overlap", [False, True])
def test_case_21_four_at_once_compute_what_they_share_once(name: str, overlap: bool) -> None:
    client, shared = Client(name, overlap=overlap, interval=1000), prompt_of(40, seed=1)
    requests = [client.request(shared + prompt_of(5, seed=10 + i)) for i in range(4)]
    client.load.add(*requests)
    client.finish()
    client.compare(*requests)
    assert sorted(client.cached.values()) == [0, 40, 40, 40]


@EACH
def test_case_22_a_state_cannot_be_trimmed(name: str) -> None:
    client = Client(name, interval=1000)
    start, b = prompt_of(12, seed=1), prompt_of(10, seed=2)
    client.ask(start + b)
    for at in range(10):
        client.ask(start + b[:at] + (110,) + prompt_of(9 - at, seed=3))
        assert client.ask((*start, *b, 9)) >= 21  # Nor has anybody written to what those shared.
    for cut, end in itertools.product((0, 3), (1, 2)):
        client.ask(start[: len(start) - cut] + b[-end:])


@EACH
def test_invariant_4_tokens_skipped_are_the_state_s_position(name: str) -> None:
    client, prompt = Client(name), prompt_of(21, seed=1)
    client.ask(prompt)
    request = client.request(prompt)
    client.load.add(request)
    (row,) = client.engine.scheduler.schedule().rows
    sequence = row.sequence
    assert row.start == sequence.state.position == 20
    assert sequence.reuse is not None
    assert sequence.reuse.effective == 20
