"""Train the demo model for a given time.

    python -m demo.train --shards DIR --tokenizer DIR --run DIR --seconds 1380

Reads the rows that `demo.shards` writes, also while it still writes. Keeps `RUN/checkpoint.pt` (and goes on from it
when it is there), `RUN/curve.jsonl` and the exported model in `RUN/model`. Stops early with exit code 3 when
look-ups in short contexts have not appeared by `--recall-by` seconds.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from pathlib import Path
from typing import Any, Final

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as F

from demo.batches import SCORED_SHARE, Batch, Prefetch, batches
from demo.evaluate import Judged, Tally, exact_matches, probe
from demo.export import export, load_exported
from demo.model import TINY, Model, ModelConfig, parameter_count
from demo.optimizer import Optimizer
from demo.schedule import STAGES, Stage, rate_at, stage_at

Z_LOSS: Final = 1e-4
RECALL_WANTED: Final = 0.15  # of look-ups in rows of the first stage's length


def loss_of(hidden: Tensor, embedding: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """(loss with the z-loss, plain weighted cross entropy), over the scored positions."""
    chosen = hidden.flatten(0, 1)[batch.positions]
    logits = F.linear(chosen, embedding.to(chosen.dtype)).float()
    normaliser = logits.logsumexp(-1)
    gold = logits.gather(-1, batch.targets.unsqueeze(-1)).squeeze(-1)
    weights = batch.weights / batch.weights.sum()
    entropy = (weights * (normaliser - gold)).sum()
    return entropy + Z_LOSS * (weights * normaliser.square()).sum(), entropy.detach()


class Trainer:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.device = torch.device(options.device)
        self.dtype = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        self.run: Path = options.run
        self.run.mkdir(parents=True, exist_ok=True)
        self.stages = options.stages
        self.tokenizer = Tokenizer.from_file(str(options.tokenizer / "tokenizer.json"))
        torch.manual_seed(options.seed)
        config = TINY if options.tiny else ModelConfig()
        if options.tiny:
            config = ModelConfig(**{**vars(TINY), "vocabulary": self.tokenizer.get_vocab_size()})
        self.model = (load_exported(options.init) if options.init else Model(config)).to(self.device)
        self.optimizer = Optimizer(self.model)
        self.loss_of = loss_of
        if options.compile:
            # Layer by layer: equal layers share one graph, which keeps compiling short.
            torch._dynamo.config.recompile_limit = 64
            for layer in self.model.layers:
                layer.compile(dynamic=False)
            self.loss_of = torch.compile(loss_of, dynamic=False)
        self.step = 0
        self.tokens = 0
        self.spent = 0.0  # seconds of earlier runs
        self.used: set[Path] = set()
        self.resume()
        self.probes = {} if options.warm_up else self.make_probes()
        self.started = time.monotonic()

    @property
    def seconds(self) -> float:
        return self.spent + time.monotonic() - self.started

    @property
    def progress(self) -> float:
        return self.seconds / float(self.options.seconds)

    def train(self) -> bool:
        """Train to the end of the time; False when recall did not appear."""
        print(f"{parameter_count(self.model)} parameters, from step {self.step}", flush=True)
        prefetch: Prefetch | None = None
        length = 0
        saved = probed = self.seconds
        recall = self.tokens > 0
        mark, mark_tokens = self.seconds, self.tokens
        running = torch.zeros((), device=self.device)
        while self.progress < 1:
            stage = stage_at(self.progress, self.stages)
            if stage.length != length or prefetch is None:
                length = stage.length
                if prefetch:
                    prefetch.stop()
                rows = max(1, self.options.step_tokens // length)
                source = batches(self.options.shards, length, rows, self.options.seed + self.step, self.used)
                prefetch = Prefetch(source, self.device)
            batch = prefetch.next()
            entropy, norm = self.update(batch)
            running += entropy
            self.step += 1
            self.tokens += batch.ids.numel()
            if self.step % self.options.log_every == 0:
                average = float(running) / self.options.log_every
                running.zero_()
                speed = (self.tokens - mark_tokens) / (self.seconds - mark)
                mark, mark_tokens = self.seconds, self.tokens
                self.log(loss=average, norm=float(norm), tokens_per_second=speed, length=length, shards=len(self.used))
            if self.seconds - probed > self.options.probe_every:
                shares = self.probe()
                recall = recall or shares["entity"][str(self.stages[0].length)] >= RECALL_WANTED
                probed = self.seconds
                if not recall and self.seconds > self.options.recall_by:
                    self.save()
                    return False
            if self.seconds - saved > self.options.save_every:
                self.save()
                saved = self.seconds
        self.probe()
        self.save()
        return True

    def update(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """One step; (cross entropy, gradient norm), both left on the device."""
        hidden = self.model(batch.ids, self.dtype)
        loss, entropy = self.loss_of(hidden, self.model.embedding, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        return entropy, self.optimizer.step(rate_at(self.progress, self.step))

    def warm_up(self, lengths: list[int]) -> None:
        """Compile for these row lengths. Another process that trains then finds the kernels in the cache on disk."""
        for length in lengths:
            ids = torch.zeros(self.options.step_tokens // length, length, dtype=torch.int64, device=self.device)
            scored = int(ids.numel() * SCORED_SHARE)
            positions = torch.arange(scored, device=self.device)
            self.update(Batch(ids, positions, torch.zeros_like(positions), torch.ones(scored, device=self.device)))
            print(f"compiled for rows of {length} after {self.seconds:.0f} s", flush=True)

    def make_probes(self) -> dict[tuple[str, int], list[Judged]]:
        """Held-out dialogues by split and row length."""
        return {
            (split, length): [
                probe(self.tokenizer, split, length, seed)
                for seed in range(max(4, self.options.probe_tokens // length))
            ]
            for split in ("entity", "phrasing")
            for length in dict.fromkeys(stage.length for stage in self.stages)
        }

    def probe(self) -> dict[str, dict[str, float]]:
        """Held-out look-ups answered exactly: split -> row length -> share."""
        shares: dict[str, dict[str, float]] = {"entity": {}, "phrasing": {}}
        forms = Tally()
        with torch.compiler.set_stance("force_eager"):
            for (split, length), inputs in self.probes.items():
                tally = Tally()
                for judged, right in zip(inputs, exact_matches(self.model, inputs, self.dtype), strict=True):
                    for labels, correct in zip(judged.labels, right, strict=True):
                        tally.add(("all",), correct)
                        forms.add((f"{labels[0]} {labels[1]}",), correct)
                shares[split][str(length)] = round(tally.share("all"), 4)
        self.log(look_ups=shares, forms={label: entry["share"] for label, entry in forms.table().items()})
        return shares

    def log(self, **values: Any) -> None:
        line = {"step": self.step, "tokens": self.tokens, "seconds": round(self.seconds, 1), **values}
        text = json.dumps({k: round(v, 4) if isinstance(v, float) else v for k, v in line.items()})
        print(text, flush=True)
        with (self.run / "curve.jsonl").open("a", encoding="utf-8") as file:
            file.write(text + "\n")

    def save(self) -> None:
        """Checkpoint and export; each file is complete or the old one."""
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "tokens": self.tokens,
            "seconds": self.seconds,
            "used": [path.name for path in self.used],
        }
        torch.save(state, self.run / "checkpoint.new")
        (self.run / "checkpoint.new").rename(self.run / "checkpoint.pt")
        export(self.model, self.run / "model.new")
        for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            shutil.copy(self.options.tokenizer / file, self.run / "model.new")
        shutil.rmtree(self.run / "model", ignore_errors=True)
        (self.run / "model.new").rename(self.run / "model")

    def resume(self) -> None:
        path = self.run / "checkpoint.pt"
        if not path.exists():
            return
        state = torch.load(path, map_location=self.device)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.tokens, self.spent = state["step"], state["tokens"], state["seconds"]
        self.used = {self.options.shards / name for name in state["used"]}


def stages(text: str) -> tuple[Stage, ...]:
    """`2048:0.7,8192:1`: rows of 2,048 tokens until 70% of the time, then of 8,192."""
    pairs = (part.split(":") for part in text.split(","))
    return tuple(Stage(int(length), float(until)) for length, until in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--run", type=Path, required=True, help="folder for checkpoint, curve and model")
    parser.add_argument("--seconds", type=float, required=True, help="length of the whole training, resumed parts too")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--step-tokens", type=int, default=2**17)
    parser.add_argument(
        "--stages", type=stages, default=STAGES, help="LENGTH:UNTIL,... instead of the whole curriculum"
    )
    parser.add_argument("--init", type=Path, help="exported folder to start from")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tiny", action="store_true", help="a small shape, to rehearse")
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--log-every", type=int, default=25)
    parser.add_argument("--probe-every", type=float, default=60.0, help="seconds between held-out probes")
    parser.add_argument("--probe-tokens", type=int, default=2**17, help="size of one probe")
    parser.add_argument("--save-every", type=float, default=120.0, help="seconds between checkpoints")
    parser.add_argument("--recall-by", type=float, default=300.0, help="stop when there is no recall by then")
    parser.add_argument("--warm-up", type=int, nargs="+", help="only compile, for these row lengths")
    options = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    trainer = Trainer(options)
    if options.warm_up:
        trainer.warm_up(options.warm_up)
    elif not trainer.train():
        print("no recall in short contexts: stopped")
        raise SystemExit(3)


if __name__ == "__main__":
    main()
