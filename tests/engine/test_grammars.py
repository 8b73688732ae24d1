"""Answers that must follow a grammar, on models whose random weights would never do so by themselves."""

import json
import random
import re
from threading import Event
from typing import Any

import numpy as np
import pytest
import torch

from plait_engine.engine import CannotFit
from plait_engine.grammar import GrammarTokenizer
from plait_engine.request import FinishReason, Grammar, GrammarKind, Request
from plait_engine.runner.grammars import Grammars
from plait_engine.runner.masks import Masks, allowed, masked
from tests.engine.ascii_text import ascii_grammars, ascii_tokenizer
from tests.engine.tiny import EOS, VOCAB, Answer, Load, ask, books, greedy, prompt_of, run, seeded, tiny_engine

LOOPS = pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlapped"])
TOKENIZER = ascii_tokenizer()


def text_of(answer: Answer) -> str:
    return TOKENIZER.decode(answer.tokens, skip_special_tokens=True)


def regex(pattern: str) -> Grammar:
    return Grammar(GrammarKind.REGEX, pattern)


def constrained(name: str, grammar: Grammar, *, tokens: int = 150, seed: int = 0, **more: Any) -> Request:
    return ask(name, prompt_of(5, seed=seed), seeded(tokens, seed=seed, ignore_eos=False, **more), grammar=grammar)


# Generated grammars --------------------------------------------------------------------------------------------------


def schema_of(rng: random.Random, depth: int = 2) -> dict[str, Any]:
    kinds = ["integer", "boolean", "null", "string", "enum", "pattern"] + ["array", "object", "anyOf"] * bool(depth)
    kind = rng.choice(kinds)
    match kind:
        case "string":
            return {"type": "string", "maxLength": rng.randrange(1, 6)}
        case "pattern":
            return {"type": "string", "pattern": "^[a-c]{1,3}$"}
        case "integer":
            return {"type": "integer", "minimum": rng.randrange(-50, 0), "maximum": rng.randrange(1, 999)}
        case "enum":
            return {"enum": rng.sample(["red", "green", 3, None, True], 3)}
        case "array":
            return {"type": "array", "items": schema_of(rng, depth - 1), "maxItems": rng.randrange(1, 4)}
        case "anyOf":
            return {"anyOf": [schema_of(rng, depth - 1), schema_of(rng, depth - 1)]}
        case "object":
            names = rng.sample(["a", "bb", "c d"], rng.randrange(1, 4))
            properties = {name: schema_of(rng, depth - 1) for name in names}
            return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}
    return {"type": kind}


def fits(value: Any, schema: dict[str, Any]) -> bool:
    if "anyOf" in schema:
        return any(fits(value, option) for option in schema["anyOf"])
    if "enum" in schema:
        return any(value == option and type(value) is type(option) for option in schema["enum"])
    match schema["type"]:
        case "string":
            allowed_length = len(value) <= schema.get("maxLength", 99) if isinstance(value, str) else False
            return allowed_length and bool(re.search(schema.get("pattern", ""), value))
        case "integer":
            return type(value) is int and schema["minimum"] <= value <= schema["maximum"]
        case "boolean":
            return isinstance(value, bool)
        case "null":
            return value is None
        case "array":
            items = isinstance(value, list) and all(fits(item, schema["items"]) for item in value)
            return items and len(value) <= schema["maxItems"]
    parts = schema["properties"]
    return isinstance(value, dict) and value.keys() == parts.keys() and all(fits(value[n], parts[n]) for n in parts)


def test_answers_to_generated_schemas_are_valid_when_they_end_by_themselves() -> None:
    schemas = [schema_of(random.Random(seed)) for seed in range(60)]
    texts = (Grammar(GrammarKind.JSON, json.dumps(schema)) for schema in schemas)
    requests = [constrained(f"r{i}", text, seed=i) for i, text in enumerate(texts)]
    engine = tiny_engine("qwen3_5", max_seqs=20, budget=64, max_model_len=200, grammars=ascii_grammars())
    answers = run(engine, *requests)
    ended = 0
    for i, schema in enumerate(schemas):
        answer = answers[f"r{i}", 0]
        assert answer.error is None, schema
        if answer.finish is FinishReason.STOP:
            ended += 1
            assert fits(json.loads(text_of(answer)), schema), (schema, text_of(answer))
    assert ended >= 50


PATTERNS = [
    r"[a-z]{3}-[0-9]{2,4}",
    r"(yes|no|maybe)",
    r"(a+)+b",
    r"[A-F0-9]{8}(-[A-F0-9]{4}){2}",
    r"\d{1,3}(\.\d{1,3}){3}",
    r"(ab){2,5}c?",
    r"[^a-zA-Z]{1,6}",
    r"x{0,3}",
]


@LOOPS
@pytest.mark.parametrize("name", ["granite", "qwen3_5", "gemma3", "lfm2"])
def test_answers_match_their_regex(name: str, overlap: bool) -> None:
    requests = [constrained(f"r{i}", regex(pattern), seed=i) for i, pattern in enumerate(PATTERNS)]
    free = ask("free", prompt_of(7), seeded(20, seed=3))
    engine = tiny_engine(name, max_seqs=6, budget=40, max_model_len=200, overlap=overlap, grammars=ascii_grammars())
    answers = run(engine, *requests, free)
    for i, pattern in enumerate(PATTERNS):
        answer = answers[f"r{i}", 0]
        if answer.finish is FinishReason.STOP:
            assert re.fullmatch(pattern, text_of(answer)), (pattern, text_of(answer))
    assert sum(answer.finish is FinishReason.STOP for answer in answers.values()) >= len(PATTERNS) - 1
    assert answers["free", 0].tokens == run(tiny_engine(name), free)["free", 0].tokens


# The end -------------------------------------------------------------------------------------------------------------


@LOOPS
@pytest.mark.parametrize("more", [{}, {"ignore_eos": True}, {"min_tokens": 9}, {"logit_bias": {EOS: -100.0}}])
def test_a_finished_grammar_ends_the_sequence(more: dict[str, Any], overlap: bool) -> None:
    """CASES 46: whatever else would have made it go on."""
    request = ask("r", prompt_of(4), greedy(50, **{"ignore_eos": False} | more), grammar=regex("ok(ab){2}!"))
    answer = run(tiny_engine(overlap=overlap, grammars=ascii_grammars()), request)["r", 0]
    assert text_of(answer) == "okabab!"
    assert answer.finish is FinishReason.STOP
    assert answer.stop_reason is None


def test_an_answer_cut_off_by_its_length_says_so() -> None:
    answer = run(tiny_engine(grammars=ascii_grammars()), constrained("r", regex("x{30}"), tokens=10))["r", 0]
    assert answer.finish is FinishReason.LENGTH
    assert text_of(answer) == "x" * 10


def test_an_answer_that_is_complete_with_its_last_token_was_not_cut_off() -> None:
    answer = run(tiny_engine(grammars=ascii_grammars()), constrained("r", regex("x{10}"), tokens=10))["r", 0]
    assert answer.finish is FinishReason.STOP


def test_banned_tokens_do_not_break_a_grammar() -> None:
    """Penalties and biases leave nothing that the grammar allows: the grammar wins."""
    x = TOKENIZER.encode("x").ids[0]
    sampling = greedy(9, ignore_eos=False, stop_token_ids=(x,), min_tokens=5)
    request = ask("r", prompt_of(4), sampling, grammar=regex("x{3}"))
    assert text_of(run(tiny_engine(grammars=ascii_grammars()), request)["r", 0]) == "xxx"


# Beside others -------------------------------------------------------------------------------------------------------


@LOOPS
def test_a_grammar_survives_preemption(overlap: bool) -> None:
    requests = [constrained(f"r{i}", regex("([a-z][0-9]){20}!"), tokens=60, seed=i) for i in range(4)]
    alone = [run(tiny_engine("qwen3_5", grammars=ascii_grammars()), request)[request.id, 0] for request in requests]
    engine = tiny_engine("qwen3_5", max_seqs=4, slabs=12, overlap=overlap, grammars=ascii_grammars())
    answers = run(engine, *requests)
    assert engine.scheduler.preempted > 0
    assert [answers[request.id, 0].tokens for request in requests] == [answer.tokens for answer in alone]
    assert all(re.fullmatch("([a-z][0-9]){20}!", text_of(answer)) for answer in answers.values())


def test_several_sequences_of_a_request_each_follow_it() -> None:
    request = ask("r", prompt_of(4), seeded(30, ignore_eos=False), grammar=regex("[a-z]{4}"), n=3)
    answers = run(tiny_engine(grammars=ascii_grammars()), request)
    texts = {text_of(answer) for answer in answers.values()}
    assert len(texts) == 3
    assert all(re.fullmatch("[a-z]{4}", text) for text in texts)


def loaded_after(event: Event) -> Grammars:
    def load() -> GrammarTokenizer:
        assert event.wait(20)
        return GrammarTokenizer(TOKENIZER.to_str(), VOCAB, [EOS])

    return Grammars(load)


def test_others_run_while_a_tokenizer_is_loaded_for_a_grammar() -> None:
    loading = Event()
    load_by_hand = Load(tiny_engine(grammars=loaded_after(loading)))
    load_by_hand.add(constrained("slow", regex("ok")), ask("r", prompt_of(5)))
    for _ in range(20):
        load_by_hand.step()
    assert load_by_hand.answers["r", 0].finish is not None
    assert load_by_hand.answers["slow", 0].deltas == 0
    assert not load_by_hand.engine.idle
    loading.set()
    assert text_of(load_by_hand.finish(most=10**6)["slow", 0]) == "ok"


def test_a_grammar_that_is_none_ends_its_own_request_only() -> None:
    """CASES 45: never an answer without the constraint."""
    engine = tiny_engine(grammars=ascii_grammars())
    answers = run(engine, constrained("bad", regex("(a")), ask("r", prompt_of(5)), constrained("good", regex("ok")))
    bad = answers["bad", 0]
    assert (bad.finish, bad.tokens) == (FinishReason.ERROR, [])
    assert bad.error is not None
    assert "unclosed group" in bad.error
    assert answers["r", 0].error is None
    assert text_of(answers["good", 0]) == "ok"


def test_a_grammar_that_grows_too_complex_ends_its_own_request_only() -> None:
    """The library gives up in the middle of the answer: an error then, and no free text."""
    schema = {"type": "object", "properties": {f"p{i}": {"type": "string", "pattern": "(a|b)*c"} for i in range(900)}}
    engine = tiny_engine(grammars=ascii_grammars())
    request = constrained("r", Grammar(GrammarKind.JSON, json.dumps(schema)), tokens=60)
    answers = run(engine, request, ask("free", prompt_of(5)))
    broken = answers["r", 0]
    assert broken.finish is FinishReason.ERROR
    assert broken.error is not None
    assert answers["free", 0].error is None


def test_an_abort_while_a_grammar_is_compiled_leaves_nothing() -> None:
    loading = Event()
    engine = tiny_engine(grammars=loaded_after(loading))
    engine.add(constrained("r", regex("ok")))
    engine.step()
    engine.abort("r")
    assert engine.idle
    loading.set()
    assert engine.step() == []
    books(engine)


def test_a_model_without_a_tokenizer_refuses_grammars() -> None:
    with pytest.raises(CannotFit, match=r"tokenizer\.json"):
        tiny_engine().add(constrained("r", regex("a")))


# The mask ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vocab_size", [1, 31, 32, 33, 128, 200])
def test_bits_are_read_lowest_first_and_what_lies_beyond_is_forbidden(vocab_size: int) -> None:
    wanted = np.random.default_rng(1).random((3, 160)) < 0.5
    words = np.packbits(wanted, axis=1, bitorder="little").view(np.int32)
    read = allowed(Masks(torch.arange(3), torch.from_numpy(words)), vocab_size).numpy()
    expected = np.zeros((3, vocab_size), bool)
    expected[:, :160] = wanted[:, :vocab_size]
    assert (read == expected).all()


def test_only_masked_rows_change_and_logits_stay_as_they_are() -> None:
    logits = torch.randn(4, 40)
    before = logits.clone()
    words = torch.tensor([[1 << 5, 0]], dtype=torch.int32)
    result = masked(logits, logits, Masks(torch.tensor([2]), words))
    assert torch.equal(logits, before)
    assert torch.equal(result[[0, 1, 3]], before[[0, 1, 3]])
    assert result[2].argmax() == 5
    assert result[2].isfinite().sum() == 1
