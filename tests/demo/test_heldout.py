"""The command that writes held-out look-ups for the server's tests."""

import json
import subprocess
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer

from demo.evaluate import exact_matches, judged_look_up
from demo.export import load_exported
from demo.heldout import SHIPPED, SPLITS, TURNS, look_ups, token_count


def test_the_command_writes_the_same_lines_again(tmp_path: Path) -> None:
    written = []
    for name in ("first", "second"):
        out = tmp_path / name
        command = [sys.executable, "-m", "demo.heldout", "--n", "8", "--max-tokens", "512", "--out", str(out)]
        subprocess.run(command, check=True)
        written.append(out.read_text(encoding="utf-8"))
    assert written[0] == written[1]
    lines = [json.loads(line) for line in written[0].splitlines()]
    assert len(lines) == 8
    assert all(line["messages"][-1]["role"] == "user" and line["expected"] for line in lines)


def test_look_ups_cover_splits_and_turns_and_keep_to_their_length(tokenizer: Tokenizer) -> None:
    found = list(look_ups(tokenizer, 16, 3, (256, 1024)))
    assert {one.split for one in found} == set(SPLITS)
    assert {one.turns for one in found} == set(TURNS)
    for one in found:
        assert token_count(tokenizer, one.messages) <= one.length
        assert (sum(message.role == "assistant" for message in one.messages) == 0) == (one.turns == "single")


@torch.no_grad()
def test_the_shipped_model_answers_unseen_entities(tokenizer: Tokenizer) -> None:
    found = [one for one in look_ups(tokenizer, 24, 5, (256,)) if one.split == "entity"]
    judged = [judged_look_up(tokenizer, one) for one in found]
    right = [spans[0] for spans in exact_matches(load_exported(SHIPPED).eval(), judged, torch.float32)]
    assert sum(right) >= 10  # of 12
