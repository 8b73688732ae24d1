"""Loads: what they share, how long they are, and that the same seed makes the same one."""

import json
from pathlib import Path

import pytest

from plait_server.bench.words import Words
from plait_server.bench.workload import LOADS, BadTrace, Shape

WORDS = Words()


def count(text: str) -> int:
    return len(text.split())


@pytest.mark.parametrize("name", ["random", "shared-prefix", "multi-turn"])
def test_the_same_seed_is_the_same_load_and_another_one_another(name: str) -> None:
    def load(seed: int) -> list[object]:
        return list(LOADS[name](Shape(sessions=5, spread=0.5, seed=seed), WORDS))

    assert load(1) == load(1)
    assert load(1) != load(2)


def test_random_prompts_have_nothing_in_common_and_the_length_asked_for() -> None:
    sessions = list(LOADS["random"](Shape(sessions=20, input_tokens=30, output_tokens=7), WORDS))
    assert {count(session.turns[0].text) for session in sessions} == {30}
    assert {session.turns[0].max_tokens for session in sessions} == {7}
    assert len({session.turns[0].text.split()[0] for session in sessions}) > 10


def test_lengths_vary_as_far_as_asked() -> None:
    sessions = LOADS["random"](Shape(sessions=200, input_tokens=100, output_tokens=10, spread=0.3), WORDS)
    lengths = [count(session.turns[0].text) for session in sessions]
    assert 70 <= min(lengths) < 80
    assert 120 < max(lengths) <= 130


def test_prefixes_are_shared_by_groups() -> None:
    sessions = list(LOADS["shared-prefix"](Shape(sessions=9, groups=3, prefix_tokens=50), WORDS))
    assert [count(session.system) for session in sessions] == [50] * 9
    assert len({session.system for session in sessions}) == 3
    assert len({session.turns[0].text for session in sessions}) == 9


def test_conversations_have_turns() -> None:
    sessions = list(LOADS["multi-turn"](Shape(sessions=3, turns=4), WORDS))
    assert [len(session.turns) for session in sessions] == [4, 4, 4]
    assert len({turn.text for session in sessions for turn in session.turns}) == 12


def test_words_make_up_for_the_server_s_tokenizer() -> None:
    assert count(Words(tokens_per_word=2.5).text(100, "seed")) == 40


def test_a_trace_gives_arrivals_lengths_and_what_is_shared(tmp_path: Path) -> None:
    lines = [
        {"timestamp": 0, "input_length": 1_100, "output_length": 5, "hash_ids": [1, 2, 3]},
        {"timestamp": 500, "input_length": 700, "output_length": 6, "hash_ids": [1, 4]},
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    first, second = LOADS["trace"](Shape(trace=path, speed=2.0), WORDS)
    assert (first.at, second.at) == (0.0, 0.25)
    assert (first.turns[0].max_tokens, second.turns[0].max_tokens) == (5, 6)
    one, other = (session.turns[0].text.split() for session in (first, second))
    assert (len(one), len(other)) == (1_100, 700)
    assert one[:512] == other[:512]
    assert one[512:700] != other[512:]
    assert len(list(LOADS["trace"](Shape(trace=path, sessions=1), WORDS))) == 1


@pytest.mark.parametrize(
    "line", ["{", "[]", "{}", '{"timestamp": 0, "input_length": "x", "output_length": 1, "hash_ids": []}']
)
def test_a_bad_line_of_a_trace_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(line)
    with pytest.raises(BadTrace, match=r"trace\.jsonl, line 1"):
        list(LOADS["trace"](Shape(trace=path), WORDS))
