"""What a grammar forces is computed at once, and no answer shows it: ORACLE is the same load without that."""

import json
import random
from functools import cache
from typing import Any

import numpy as np
import pytest

from benchmarks.structured_output.regexes import regexes
from benchmarks.structured_output.schemas import schemas
from plait_engine.demo_model import DEMO_FOLDER
from plait_engine.grammar import GrammarTokenizer, Matcher
from plait_engine.request import FinishReason, Grammar, GrammarKind, Request
from plait_engine.runner.grammars import Grammars
from tests.engine.ascii_text import ascii_tokenizer
from tests.engine.tiny import EOS, VOCAB, Answer, Answers, Load, ask, greedy, prompt_of, seeded, tiny_engine

LOOPS = pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlapped"])
MODELS = pytest.mark.parametrize("name", ["granite", "qwen3_5", "gemma3", "lfm2", "braid"])
TOKENIZER = ascii_tokenizer()
FORCED = "[ab] and then it goes on and on (red|green) until it is over[.!]"
"""Long forced runs between few choices."""


def grammars(*, fast_forward: bool) -> Grammars:
    text = TOKENIZER.to_str()
    return Grammars(lambda: GrammarTokenizer(text, VOCAB, [EOS]), fast_forward=fast_forward)


def regex(pattern: str) -> Grammar:
    return Grammar(GrammarKind.REGEX, pattern)


def follow(
    id: str, grammar: Grammar, *, prompt: tuple[int, ...] | None = None, tokens: int = 90, **more: Any
) -> Request:
    sampling = {"ignore_eos": False, "logprobs": None} | more
    return ask(id, prompt or prompt_of(5, seed=len(id)), greedy(tokens, **sampling), grammar=grammar)


def text_of(answer: Answer) -> str:
    return TOKENIZER.decode(answer.tokens, skip_special_tokens=True)


def load_of(name: str, *requests: Request, fast_forward: bool, **settings: Any) -> Load:
    settings = {"max_seqs": 8, "budget": 30, "max_model_len": 200} | settings
    load = Load(tiny_engine(name, grammars=grammars(fast_forward=fast_forward), **settings))
    load.add(*requests)
    return load


def seen(answers: Answers) -> dict[tuple[str, int], Any]:
    return {key: (answer.tokens, answer.finish, answer.stop_reason, answer.error) for key, answer in answers.items()}


def both(name: str, *requests: Request, **settings: Any) -> tuple[Load, Load]:
    """The same load with fast-forward and without, run to their ends, which are the same."""
    quick, plain = (load_of(name, *requests, fast_forward=on, **settings) for on in (True, False))
    assert seen(quick.finish()) == seen(plain.finish())
    return quick, plain


# The same answer ------------------------------------------------------------------------------------------------------


def many() -> list[Request]:
    texts = [json.dumps(schema) for schema in schemas(24)]
    asked = [follow(f"schema-{i}", Grammar(GrammarKind.JSON, text)) for i, text in enumerate(texts)]
    asked += [follow(f"regex-{i}", regex(each)) for i, each in enumerate([*regexes(12), FORCED]) if each.isascii()]
    chances = {"temperature": 1.0, "top_p": 0.9, "frequency_penalty": 0.5, "repetition_penalty": 1.1}
    return asked + [follow(f"seeded-{i}", regex(FORCED), seed=i, **chances) for i in range(4)]


@LOOPS
@MODELS
def test_answers_are_those_of_sampling_token_by_token(name: str, overlap: bool) -> None:
    requests = [*many(), ask("free", prompt_of(9), seeded(40, seed=1, logprobs=None))]
    quick, plain = both(name, *requests, overlap=overlap)
    assert quick.steps < plain.steps
    assert sum(a.deltas for a in quick.answers.values()) < 0.9 * sum(a.deltas for a in plain.answers.values())


def test_a_forced_run_is_one_step() -> None:
    quick, plain = both("granite", follow("r", regex("[ab] and then it goes on and on[.!]")), budget=80)
    assert len(text_of(quick.answers["r", 0])) == 29
    assert (quick.engine.steps, plain.engine.steps) == (2, len(plain.answers["r", 0].tokens))
    assert quick.answers["r", 0].deltas == 2


@MODELS
@pytest.mark.parametrize("budget", [2, 5, 13])
def test_a_run_that_is_longer_than_a_step_is_computed_in_pieces(name: str, budget: int) -> None:
    both(name, *(follow("r" * n, regex(FORCED)) for n in range(1, 3)), budget=budget, max_seqs=2)


def test_several_sequences_of_a_request() -> None:
    request = follow("r", regex(FORCED), temperature=1.0, seed=3)
    asked = ask("r", request.prompt, request.sampling, grammar=request.grammar, n=3)
    quick, _ = both("granite", asked)
    assert len({text_of(answer) for answer in quick.answers.values()}) > 1


# The end --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", range(1, 66, 4))
def test_max_tokens_cut_a_forced_run_where_they_would_have(tokens: int) -> None:
    quick, _ = both("granite", follow("r", regex(FORCED), tokens=tokens))
    answer = quick.answers["r", 0]
    assert len(answer.tokens) <= tokens
    assert (answer.finish is FinishReason.LENGTH) == (len(answer.tokens) == tokens and text_of(answer)[-1] not in ".!")


def test_the_context_s_end_cuts_a_forced_run() -> None:
    quick, _ = both("granite", follow("r", regex(FORCED)), max_model_len=20)
    assert len(quick.answers["r", 0].tokens) == 15


@pytest.mark.parametrize("min_tokens", [0, 11, 30])
def test_a_stop_token_in_a_forced_run_ends_it(min_tokens: int) -> None:
    t = TOKENIZER.encode("t").ids[0]
    quick, _ = both("granite", follow("r", regex(FORCED), stop_token_ids=(t,), min_tokens=min_tokens))
    answer = quick.answers["r", 0]
    assert (answer.finish, answer.stop_reason, answer.tokens[-1]) == (FinishReason.STOP, t, t)
    assert len(answer.tokens) >= min_tokens


def test_who_wants_log_probabilities_has_each_token_sampled() -> None:
    quick, plain = both("granite", follow("r", regex(FORCED), logprobs=VOCAB))
    answer = quick.answers["r", 0]
    assert answer.deltas == len(answer.entries) == len(answer.tokens)
    assert answer.entries == plain.answers["r", 0].entries


# Beside others --------------------------------------------------------------------------------------------------------


@LOOPS
@MODELS
def test_preempted_in_the_middle_of_forced_runs(name: str, overlap: bool) -> None:
    requests = [follow(f"r{i}", regex(FORCED), prompt=prompt_of(6, seed=i)) for i in range(5)]
    for reuse in (False, True):
        quick, _ = both(
            name, *requests, slabs=LEAST_SLABS[name], overlap=overlap, reuse=reuse, max_seqs=5, max_model_len=90
        )
        assert quick.engine.scheduler.preempted > 0


@MODELS
def test_what_comes_next_in_a_chat_finds_a_state_that_is_right(name: str) -> None:
    """Tokens forced at an answer's end are never computed: what is kept ends before them, and the next turn goes on."""
    first = follow("a", regex(FORCED), prompt=prompt_of(17))
    load = load_of(name, first, fast_forward=True, reuse=True)
    answer = load.finish()["a", 0]
    turn = (*first.prompt, *answer.tokens, *prompt_of(6, seed=9))
    load.add(follow("b", regex(FORCED), prompt=turn), ask("c", turn, greedy(8, logprobs=None)))
    found: dict[str, int] = {}
    while not load.engine.idle:
        found |= {delta.request_id: delta.cached_tokens for delta in load.step() if delta.cached_tokens}
    assert found["b"] > len(first.prompt)
    for request in (follow("b", regex(FORCED), prompt=turn), ask("c", turn, greedy(8, logprobs=None))):
        cold = load_of(name, request, fast_forward=False).finish()
        assert load.answers[request.id, 0].tokens == cold[request.id, 0].tokens


def test_forced_runs_and_a_long_prompt_let_every_stream_go_on() -> None:
    """A stream is in every step, a run gets on in every step, and so does the prompt."""
    budget, streams = 16, 4
    load = load_of(
        "granite",
        *(ask(f"s{i}", prompt_of(3, seed=i), greedy(60)) for i in range(streams)),
        fast_forward=True,
        budget=budget,
    )
    while min(load.answers[f"s{i}", 0].deltas for i in range(streams)) < 2:
        load.step()
    load.add(*(follow(f"r{i}", regex("[ab]x{60}[cd]"), prompt=prompt_of(4, seed=i)) for i in range(2)))
    while min(load.answers[f"r{i}", 0].deltas for i in range(2)) < 1:
        load.step()
    load.add(ask("long", prompt_of(150), greedy(1)))
    long_seen = 0
    for _ in range(12):
        deltas = {delta.request_id for delta in load.step()}
        assert {f"s{i}" for i in range(streams)} <= deltas
        longest = next(s for s in load.engine._sequences.values() if s.request.id == "long")
        assert longest.state.position > long_seen
        long_seen = longest.state.position
    load.finish()


@LOOPS
def test_an_abort_in_the_middle_of_a_forced_run_leaves_nothing(overlap: bool) -> None:
    beside = ask("s", prompt_of(3), greedy(30, logprobs=None))
    for steps in range(1, 14):
        load = load_of(
            "granite", follow("r", regex("[ab]x{60}[cd]")), beside, fast_forward=True, overlap=overlap, budget=7
        )
        for _ in range(10**6):
            if load.answers["r", 0].deltas:
                break
            load.step()
        for _ in range(steps):
            load.step()
        load.engine.abort("r")
        load.finish()
        assert load.answers["s", 0].tokens == load_of("granite", beside, fast_forward=True).finish()["s", 0].tokens


LEAST_SLABS = {"granite": 12, "qwen3_5": 12, "gemma3": 24, "lfm2": 34, "braid": 20}


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 30))])
@MODELS
def test_whatever_comes_and_goes_each_answer_is_that_of_its_request_alone(name: str, seed: int) -> None:
    """Grammars beside free answers, shared prompts, aborts, any budget, either loop, with reuse and little memory."""
    chance = random.Random(f"{name}-{seed}")
    asked = [anything(chance, number) for number in range(9)]
    settings = {"max_seqs": 5, "budget": chance.randrange(5, 40), "overlap": chance.random() < 0.5, "reuse": True}
    load = load_of(name, fast_forward=True, slabs=LEAST_SLABS[name] + seed, max_model_len=90, **settings)
    coming, gone = list(asked), set()
    while coming or not load.engine.idle:
        if coming and chance.random() < 0.3:
            load.add(coming.pop())
        if chance.random() < 0.02:
            gone.add(chance.choice(asked).id)
            load.engine.abort(max(gone))
        load.step()
    load.finish()
    for request in asked:
        alone = load_of(name, request, fast_forward=False).finish()
        if request.id not in gone:
            assert seen(load.answers)[request.id, 0] == seen(alone)[request.id, 0]


def anything(chance: random.Random, number: int) -> Request:
    prompt = (*prompt_of(20)[: chance.choice([3, 12, 20])], *prompt_of(chance.randrange(1, 8), seed=number))
    texts = [FORCED, "[ab]x{30}[cd]y{5}", "(red|green|blue){8}", "([a-z][0-9]){9}!"]
    if chance.random() < 0.3:
        return ask(f"free-{number}", prompt, greedy(chance.randrange(1, 20), logprobs=None))
    warm = {"temperature": 1.0, "seed": number} if chance.random() < 0.5 else {}
    return follow(f"r-{number}", regex(chance.choice(texts)), prompt=prompt, tokens=chance.randrange(1, 60), **warm)


# What the library says ------------------------------------------------------------------------------------------------


@cache
def tokenizers() -> dict[str, GrammarTokenizer]:
    config = json.loads((DEMO_FOLDER / "config.json").read_text())
    path = DEMO_FOLDER / "tokenizer.json"
    return {
        "demo": GrammarTokenizer.load(path, config["vocab_size"], [config["eos_token_id"]]),
        "ascii": GrammarTokenizer(TOKENIZER.to_str(), VOCAB, [EOS]),
    }


def allowed(matcher: Matcher) -> list[int]:
    bits = np.unpackbits(np.frombuffer(matcher.bits(), np.uint8), bitorder="little")
    return [int(token) for token in np.flatnonzero(bits)]


@pytest.mark.parametrize("tokenizer", ["demo", "ascii"])
def test_what_is_forced_is_what_the_masks_leave_one_after_another(tokenizer: str) -> None:
    """On walks through many grammars. Were it not so, sampling token by token could go another way."""
    asked = [Grammar(GrammarKind.JSON, json.dumps(schema)) for schema in schemas(60)]
    runs = 0
    for seed, grammar in enumerate([*asked, *map(regex, regexes(40))]):
        chance = random.Random(seed)
        coming: list[int] = []
        if tokenizer == "ascii" and not grammar.text.isascii():
            continue
        matcher = Matcher(grammar, tokenizers()[tokenizer])
        for _ in range(80):
            if matcher.complete:
                break
            forced, options = matcher.forced(), allowed(matcher)
            assert forced[: len(coming)] == coming
            coming = coming or forced
            runs += coming is forced and bool(forced)
            if coming:
                assert options == coming[:1]
            token, coming = (coming[0], coming[1:]) if coming else (chance.choice(options), [])
            matcher.consume([token])
    assert runs > 100
