"""Exact match of replies to held-out look-ups.

    python -m demo.evaluate --model engine/plait_engine/demo --n 560 [--generate] [--out table.json]

A greedy reply equals the expected one exactly when at each of its tokens, end of turn included, the expected token
is the most likely one after those before it. So one forward pass over prompt and expected reply judges it.
`--generate` uses transformers' `generate` instead, slower, as a check of that shortcut and of the export.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

import torch
from tokenizers import Tokenizer

from demo.dialogue import Dialogue, Message, Writer
from demo.export import load_exported
from demo.heldout import LENGTHS, UNJUDGED, LookUp, look_ups
from demo.model import Model
from demo.rows import CHARS_PER_TOKEN, MASKED, segments
from demo.scan import CHUNK
from demo.tokenizer import PAD_ID, TURN_END
from demo.world import held_out_prose

FORWARD_TOKENS: Final = 2**16  # per pass


@dataclass(frozen=True, slots=True)
class Judged:
    """Tokens, and the spans of them that must each be the most likely continuation."""

    ids: list[int]
    spans: list[tuple[int, int]]  # start and end of a reply with its end of turn
    labels: list[tuple[str, ...]]  # what each span counts for


def judged_look_up(tokenizer: Tokenizer, found: LookUp) -> Judged:
    """Prompt and expected reply of one look-up."""
    dialogue = Dialogue([*found.messages, Message("assistant", found.expected)])
    dialogue.forms = ["lookup"] * sum(message.role == "assistant" for message in dialogue.messages)
    ids: list[int] = []
    spans: list[tuple[int, int]] = []
    for text, code in segments(dialogue):
        piece = tokenizer.encode(text, add_special_tokens=False).ids
        if code != MASKED:
            spans.append((len(ids), len(ids) + len(piece)))
        ids += piece
    return Judged(ids, spans[-1:], [(found.split, found.turns, found.form, str(found.length))])


def probe(tokenizer: Tokenizer, split: str, tokens: int, seed: int) -> Judged:
    """A held-out dialogue of about so many tokens, all of whose look-ups are judged."""
    rng = Random(f"probe {seed} {split} {tokens}")
    chars = int(0.9 * tokens * CHARS_PER_TOKEN)
    dialogue = Writer(rng, "held_out", split == "phrasing", held_out_prose(), chars).write()
    judged = Judged([], [], [])
    forms = iter(dialogue.forms)
    for text, _ in segments(dialogue):
        piece = tokenizer.encode(text, add_special_tokens=False).ids
        reply = text.endswith(TURN_END)
        form = next(forms) if reply else ""
        end = len(judged.ids) + len(piece)
        if reply and form not in UNJUDGED and end <= tokens:
            judged.spans.append((len(judged.ids), end))
            judged.labels.append((split, form))
        judged.ids.extend(piece)
    del judged.ids[tokens:]
    return judged


@torch.no_grad()
def exact_matches(model: Model, all_judged: Sequence[Judged], dtype: torch.dtype) -> list[list[bool]]:
    """For each input whether each of its spans is what greedy decoding would write."""
    device = model.embedding.device
    results: list[list[bool]] = [[] for _ in all_judged]
    order = sorted(range(len(all_judged)), key=lambda index: len(all_judged[index].ids))
    while order:
        longest = padded_length(len(all_judged[order[-1]].ids))
        group = [order.pop() for _ in range(min(len(order), max(1, FORWARD_TOKENS // longest)))]
        ids = torch.full((len(group), longest), PAD_ID)
        for row, index in enumerate(group):
            ids[row, : len(all_judged[index].ids)] = torch.tensor(all_judged[index].ids)
        hidden = model(ids.to(device), dtype)
        for row, index in enumerate(group):
            spans = all_judged[index].spans
            if not spans:
                continue
            wanted = torch.cat([torch.arange(start, end) for start, end in spans])
            best = model.logits(hidden[row, (wanted - 1).to(device)].float()).argmax(-1).cpu()
            pieces = torch.split(best == ids[row, wanted], [end - start for start, end in spans])
            results[index] = [bool(piece.all()) for piece in pieces]
    return results


def padded_length(length: int) -> int:
    return -(-length // CHUNK) * CHUNK


class Tally:
    """Share of right replies by any label."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.right: Counter[str] = Counter()

    def add(self, labels: Iterable[str], right: bool) -> None:
        for label in labels:
            self.asked[label] += 1
            self.right[label] += right

    def share(self, label: str) -> float:
        return self.right[label] / self.asked[label] if self.asked[label] else float("nan")

    def table(self) -> dict[str, dict[str, float]]:
        return {
            label: {"share": round(self.share(label), 4), "asked": self.asked[label]} for label in sorted(self.asked)
        }


def tally_of(found: Sequence[LookUp], right: Sequence[bool]) -> Tally:
    """By split, and within it by length, turns and form; lengths to 1,500 together as `short`."""
    tally = Tally()
    for one, correct in zip(found, right, strict=True):
        size = "short" if one.length <= 1500 else "long"
        tally.add(
            (
                one.split,
                f"{one.split} {size}",
                f"{one.split} {size} {one.turns}",
                f"{one.split} length {one.length:>5}",
                f"{one.split} {size} form {one.form}",
            ),
            correct,
        )
    return tally


def generated(folder: Path) -> Callable[[LookUp], str]:
    """Greedy replies by transformers."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    def reply(found: LookUp) -> str:
        messages = [{"role": message.role, "content": message.content} for message in found.messages]
        inputs = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_dict=True, return_tensors="pt"
        )
        output = model.generate(**inputs, max_new_tokens=64, do_sample=False)
        text: str = tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        return text

    return reply


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="exported folder")
    parser.add_argument("--n", type=int, default=280)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--max-tokens", type=int, default=max(LENGTHS))
    parser.add_argument("--min-tokens", type=int, default=min(LENGTHS))
    parser.add_argument("--generate", action="store_true", help="decode with transformers")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--show-wrong", type=int, default=0, help="print so many wrong replies")
    parser.add_argument("--out", type=Path, help="write the table as JSON")
    options = parser.parse_args()
    started = time.monotonic()
    tokenizer = Tokenizer.from_file(str(options.model / "tokenizer.json"))
    found = list(
        look_ups(
            tokenizer,
            options.n,
            options.seed,
            tuple(n for n in LENGTHS if options.min_tokens <= n <= options.max_tokens),
        )
    )
    if options.generate:
        reply = generated(options.model)
        right = [reply(one) == one.expected for one in found]
    else:
        model = load_exported(options.model).to(options.device).eval()
        inputs = [judged_look_up(tokenizer, one) for one in found]
        right = [spans[0] for spans in exact_matches(model, inputs, getattr(torch, options.dtype))]
    table = tally_of(found, right).table()
    for label, entry in table.items():
        print(f"{label:40} {entry['share']:7.2%} of {entry['asked']:.0f}")
    for one in [one for one, correct in zip(found, right, strict=True) if not correct][: options.show_wrong]:
        print(f"--- {one.split} {one.form} {one.length}: {one.messages[-1].content[-120:]!r} wants {one.expected!r}")
    print(f"{time.monotonic() - started:.0f} s", file=sys.stderr)
    if options.out:
        options.out.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
