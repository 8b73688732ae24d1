"""A short last stage on a CPU: only the upper layers, only short dialogues told one statement a turn.

    python -m demo.polish --model DIR --corpus DIR --out DIR --seconds 900

The long training of the shipped weights had hardly any lone statements ("Mara owns a violin."), so the model
answered them as if they were questions. `Writer.tell_singly` teaches the acknowledgement; half of the rows are
ordinary ones, so that nothing else is lost. A new training run has both from the start and needs no polish.
"""

from __future__ import annotations

import argparse
import shutil
import time
from pathlib import Path
from random import Random
from typing import Final

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as F

from demo.dialogue import Writer
from demo.export import export, load_exported
from demo.model import Model
from demo.rows import CHARS_PER_TOKEN, MASKED, Prose, segments
from demo.scan import CHUNK
from demo.tokenizer import PAD_ID

RATE: Final = 1e-4
STEP_TOKENS: Final = 2304


def row(tokenizer: Tokenizer, prose: Prose, rng: Random, length: int) -> tuple[list[int], list[int]]:
    """Token ids and weight codes of one dialogue, cut or padded to `length` + 1."""
    chars = int(length * CHARS_PER_TOKEN * rng.uniform(0.3, 1.0))
    writer = Writer(rng, "train", False, prose.paragraphs, chars)
    if rng.random() < 0.5:
        writer.tell_singly()
    else:
        writer.write()
    ids: list[int] = []
    codes: list[int] = []
    for text, code in segments(writer.dialogue):
        piece = tokenizer.encode(text, add_special_tokens=False).ids
        ids += piece
        codes += [code] * len(piece)
    missing = max(0, length + 1 - len(ids))
    return [*ids, *[PAD_ID] * missing][: length + 1], [*codes, *[MASKED] * missing][: length + 1]


def upper_loss(model: Model, frozen: int, ids: Tensor, codes: Tensor) -> Tensor:
    """Mean cross entropy of all reply tokens, with gradients above layer `frozen` only."""
    with torch.no_grad():
        hidden = F.embedding(ids[:, :-1], model.embedding) * model.config.embedding_multiplier
        for layer in model.layers[:frozen]:
            hidden = layer(hidden)
    for layer in model.layers[frozen:]:
        hidden = layer(hidden)
    scored = codes[:, 1:] != MASKED
    return F.cross_entropy(model.logits(model.norm(hidden)[scored]), ids[:, 1:][scored])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="exported folder to start from")
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--frozen", type=int, default=5, help="layers from below that stay as they are")
    parser.add_argument("--length", type=int, default=3 * CHUNK, help="tokens per row")
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(options.model / "tokenizer.json"))
    prose = Prose(options.corpus, tokenizer)
    rng = Random(options.seed)
    model = load_exported(options.model)
    model.embedding.requires_grad_(False)
    parameters = [p for layer in model.layers[options.frozen :] for p in layer.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=RATE, betas=(0.9, 0.98))
    started = time.monotonic()
    step = 0
    while (progress := (time.monotonic() - started) / options.seconds) < 1:
        rows = [row(tokenizer, prose, rng, options.length) for _ in range(STEP_TOKENS // options.length)]
        ids, codes = (torch.tensor(part) for part in zip(*rows, strict=True))
        loss = upper_loss(model, options.frozen, ids, codes)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1.0, (step + 1) / 10, 2 * (1 - progress))
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if step % 5 == 0:
            print(f"{time.monotonic() - started:.0f} s, step {step}, loss {loss.item():.4f}", flush=True)
    export(model, options.out)
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(options.model / file, options.out)


if __name__ == "__main__":
    main()
