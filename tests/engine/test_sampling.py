"""Sampling parameters through the whole engine: what each promises, whatever else is in the batch."""

import math
from collections import Counter

import pytest

from plait_engine.request import FinishReason
from tests.engine.tiny import (
    EOS,
    VOCAB,
    Answer,
    ask,
    check_against_oracle,
    greedy,
    oracle,
    prompt_of,
    run,
    seeded,
    table_of,
    tiny_engine,
)

LOOPS = pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlapped"])
PROMPT = prompt_of(6)


def one(overlap: bool = False, prompt: tuple[int, ...] = PROMPT, **sampling: object) -> Answer:
    return run(tiny_engine("qwen3_5", overlap=overlap), ask("r", prompt, greedy(**sampling)))["r", 0]  # type: ignore[arg-type]


@LOOPS
def test_a_seed_gives_the_same_tokens_whatever_else_is_in_the_batch(overlap: bool) -> None:
    request = ask("r", PROMPT, seeded(12, seed=41))
    alone = oracle("qwen3_5", request)[0]
    others = [ask(f"o{i}", prompt_of(3 + i, seed=i), seeded(12, seed=i)) for i in range(9)]
    for place in (0, 4, 9):
        load = [*others[:place], request, *others[place:]]
        answers = run(tiny_engine("qwen3_5", overlap=overlap, max_seqs=5), *load)
        assert answers["r", 0].tokens == alone.tokens
    assert len(set(alone.tokens)) > 4


@LOOPS
def test_several_sequences_of_a_request_draw_different_streams_and_each_is_reproducible(overlap: bool) -> None:
    request = ask("r", PROMPT, seeded(12, seed=7), n=4)
    first, second = (run(tiny_engine("qwen3_5", overlap=overlap), request) for _ in range(2))
    assert len({tuple(answer.tokens) for answer in first.values()}) == 4
    assert [a.tokens for a in first.values()] == [a.tokens for a in second.values()]


def test_without_a_seed_answers_differ() -> None:
    answers = run(tiny_engine("qwen3_5"), *(ask(f"r{i}", PROMPT, greedy(12, temperature=1.0)) for i in range(4)))
    assert len({tuple(answer.tokens) for answer in answers.values()}) == 4


def test_sampled_tokens_follow_the_probabilities_that_are_told() -> None:
    """The first token of 1,500 seeds: frequencies against the log-probabilities, within five standard deviations."""
    engine = tiny_engine("qwen3_5", max_seqs=60, budget=400)
    n = 1500
    requests = [ask(f"r{i}", PROMPT, seeded(1, seed=i, logprobs=VOCAB if i == 0 else 0)) for i in range(n)]
    answers = run(engine, *requests)
    counts = Counter(answer.tokens[0] for answer in answers.values())
    for token, logprob in answers["r0", 0].entries[0].top[:10]:
        p = math.exp(logprob)
        assert abs(counts[token] - n * p) < 5 * math.sqrt(n * p * (1 - p))


@LOOPS
def test_a_repetition_penalty_keeps_tokens_from_coming_again(overlap: bool) -> None:
    assert len(set(one(overlap, max_tokens=20, repetition_penalty=50.0).tokens)) == 20
    prompt = (*PROMPT, *one(max_tokens=20).tokens)
    tokens = one(overlap, prompt=prompt, max_tokens=10, repetition_penalty=50.0).tokens
    assert not set(tokens) & set(prompt), "those of the prompt count too"


@LOOPS
@pytest.mark.parametrize("name", ["presence_penalty", "frequency_penalty"])
def test_presence_and_frequency_penalties_keep_generated_tokens_from_coming_again(name: str, overlap: bool) -> None:
    prompt = (*PROMPT, one(max_tokens=1).tokens[0])
    tokens = one(overlap, prompt=prompt, max_tokens=20, **{name: 100.0}).tokens
    assert len(set(tokens)) == 20


def test_a_frequency_penalty_grows_with_the_count_and_a_presence_penalty_does_not() -> None:
    favourite = {50: 8.0}
    often = Counter(one(max_tokens=24, logit_bias=favourite, presence_penalty=1.0).tokens)[50]
    seldom = Counter(one(max_tokens=24, logit_bias=favourite, frequency_penalty=1.0).tokens)[50]
    assert often == 24
    assert 1 < seldom < 24


@LOOPS
def test_a_logit_bias_forces_and_forbids(overlap: bool) -> None:
    assert one(overlap, max_tokens=5, logit_bias={77: 100.0}).tokens == [77] * 5
    usual = one(overlap, max_tokens=1).tokens[0]
    assert one(overlap, max_tokens=1, logit_bias={usual: -100.0}).tokens != [usual]


@LOOPS
def test_log_probabilities_are_of_the_model_and_not_of_what_the_parameters_made_of_it(overlap: bool) -> None:
    biased = one(overlap, max_tokens=1, logit_bias={77: 100.0}, temperature=0.5, seed=1)
    plain = one(overlap, max_tokens=1)
    assert float((biased.logprobs - plain.logprobs).abs().max()) < 1e-5
    assert biased.entries[0].token_id == 77
    assert biased.entries[0].rank == 1 + sum(value > biased.entries[0].logprob for _, value in biased.entries[0].top)


@LOOPS
def test_an_end_token_ends_unless_it_is_to_be_ignored(overlap: bool) -> None:
    bias = {EOS: 100.0}
    ended = one(overlap, max_tokens=9, ignore_eos=False, logit_bias=bias)
    assert (ended.tokens, ended.finish, ended.stop_reason) == ([EOS], FinishReason.STOP, None)
    ignored = one(overlap, max_tokens=9, logit_bias=bias)
    assert (ignored.tokens, ignored.finish) == ([EOS] * 9, FinishReason.LENGTH)


@LOOPS
def test_a_stop_token_ends_and_is_named(overlap: bool) -> None:
    answer = one(overlap, max_tokens=9, stop_token_ids=(77, 78), logit_bias={78: 100.0})
    assert (answer.tokens, answer.finish, answer.stop_reason) == ([78], FinishReason.STOP, 78)


@LOOPS
@pytest.mark.parametrize("least", [1, 2, 5])
def test_min_tokens_holds_back_every_end(least: int, overlap: bool) -> None:
    bias = {EOS: 100.0, 77: 90.0}
    answer = one(overlap, max_tokens=9, min_tokens=least, ignore_eos=False, stop_token_ids=(77,), logit_bias=bias)
    assert len(answer.tokens) == least + 1
    assert answer.tokens[-1] == EOS
    assert not {EOS, 77} & set(answer.tokens[:-1])
    assert answer.finish is FinishReason.STOP


def test_min_tokens_equal_to_max_tokens_gives_exactly_that_many() -> None:
    answer = one(max_tokens=4, min_tokens=4, ignore_eos=False, logit_bias={EOS: 100.0})
    assert len(answer.tokens) == 4


@LOOPS
@pytest.mark.parametrize("budget", [3, 13, 64])
def test_prompt_scores_without_generation(budget: int, overlap: bool) -> None:
    """max_tokens 0: nothing is generated, everything is scored, whatever the chunks."""
    engine = tiny_engine("granite", budget=budget, max_seqs=3, overlap=overlap)
    requests = [ask(f"r{n}", prompt_of(n), greedy(0, prompt_logprobs=VOCAB)) for n in (1, 2, 5, 30)]
    answers = run(engine, *requests)
    for request in requests:
        answer, expected = answers[request.id, 0], oracle("granite", request)[0]
        assert (answer.tokens, answer.finish, answer.deltas) == ([], FinishReason.LENGTH, 1)
        assert answer.prompt_logprobs is not None
        assert answer.prompt_logprobs[0] is None
        assert len(answer.prompt_logprobs) == len(request.prompt)
        for token, entry in zip(request.prompt[1:], answer.prompt_logprobs[1:], strict=True):
            assert entry is not None
            assert entry.token_id == token
            assert dict(entry.top)[token] == entry.logprob
        got, want = (table_of(a.prompt_logprobs or ()) for a in (answer, expected))
        assert len(request.prompt) == 1 or float((got - want).abs().max()) < 1e-4


def test_scores_of_a_prompt_and_of_generation_agree() -> None:
    """What the model said of a token when it generated it is what it says of it in a prompt."""
    generated = one(max_tokens=10)
    again = one(prompt=(*PROMPT, *generated.tokens), max_tokens=1, prompt_logprobs=VOCAB)
    scores = table_of(again.prompt_logprobs or ())[len(PROMPT) - 1 :]
    assert float((scores - generated.logprobs).abs().max()) < 1e-4


@pytest.mark.parametrize("wanted", [0, 1, 3])
def test_as_many_alternatives_as_were_asked_for_come(wanted: int) -> None:
    engine = tiny_engine("qwen3_5")
    answers = run(
        engine,
        ask("few", PROMPT, greedy(3, logprobs=wanted, prompt_logprobs=wanted)),
        ask("many", PROMPT, greedy(3, logprobs=7)),
        ask("none", PROMPT, greedy(3, logprobs=None)),
    )
    assert [len(entry.top) for entry in answers["few", 0].entries] == [wanted] * 3
    assert [len(entry.top) for entry in answers["few", 0].prompt_logprobs or () if entry] == [wanted] * 5
    assert [len(entry.top) for entry in answers["many", 0].entries] == [7] * 3
    assert answers["none", 0].entries == []
    assert len({tuple(answer.tokens) for answer in answers.values()}) == 1


def test_every_kind_of_sampling_in_one_batch_gives_each_its_own() -> None:
    requests = [
        ask("greedy", PROMPT, greedy(8)),
        ask("seeded", PROMPT, seeded(8, seed=3)),
        ask("top_k", PROMPT, seeded(8, seed=4, top_k=3)),
        ask("top_p", PROMPT, seeded(8, seed=5, top_p=0.4)),
        ask("min_p", PROMPT, seeded(8, seed=6, min_p=0.3)),
        ask("penalised", PROMPT, greedy(8, repetition_penalty=1.4)),
        ask("biased", PROMPT, greedy(8, logit_bias={9: 3.0})),
        ask("held", PROMPT, seeded(8, seed=8, ignore_eos=False, min_tokens=3, logit_bias={EOS: 4.0})),
    ]
    check_against_oracle("qwen3_5", run(tiny_engine("qwen3_5", max_seqs=8, budget=30), *requests), requests)
