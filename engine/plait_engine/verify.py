"""``plait verify``: does this model give the same answers here as elsewhere, in pieces, and beside others?"""

import importlib.util
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from plait_engine.build import build_engine
from plait_engine.config import EngineConfig
from plait_engine.engine import Engine
from plait_engine.request import Request, SamplingParams
from plait_engine.scheduler.scheduler import Scheduler, SchedulerLimits
from plait_engine.scheduler.step_plan import Row

TOKENS = 8
"""Greedy tokens whose logits are compared after each prompt."""
SMALL_BUDGET = 7
"""Tokens a step when a prompt is taken in pieces: odd, and smaller than any page, window or scan block."""
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.35, torch.float16: 0.05}
"""Largest difference of logits that passes, relative to the largest logit's size. bf16 keeps 8 bits."""
LEAST_COSINE = {torch.float32: 0.99999, torch.bfloat16: 0.99, torch.float16: 0.999}


@dataclass(frozen=True)
class Check:
    """One comparison. ``skipped`` says why it was not made."""

    name: str
    cosine: float = 1.0
    largest_difference: float = 0.0
    passed: bool = True
    skipped: str = ""

    def describe(self) -> str:
        if self.skipped:
            return f"{self.name:44} skipped: {self.skipped}"
        verdict = "ok" if self.passed else "FAILED"
        return f"{self.name:44} cosine {self.cosine:.7f}  largest difference {self.largest_difference:.2e}  {verdict}"


Run = dict[int, tuple[list[int], Tensor]]
"""By prompt: its tokens with what was generated, and the logits ``[TOKENS, vocab]`` of the generated ones."""


def verify(config: EngineConfig, report: Callable[[str], None] = print) -> bool:
    """Run the three checks and report each. True if none failed."""
    built = build_engine(replace(config, prefix_reuse=False, audit_rate=0.0))
    engine, limit = built.engine, built.info.max_model_len
    lengths = [n for n in (1, 2, 3, 5, 8, 16, 17, 33, 64, 129, 300) if n + TOKENS < limit]
    words = random.Random(config.seed)
    prompts = [[words.randrange(built.info.vocab_size) for _ in range(n)] for n in lengths]
    alone = run_alone(engine, prompts)
    checks = [
        against_transformers(Path(built.info.model), engine, alone),
        compare("growing lengths, whole against in pieces", engine, alone, run_alone(in_pieces(engine), prompts)),
        compare("alone against all together", engine, alone, run_together(engine, prompts)),
    ]
    for check in checks:
        report(check.describe())
    engine.check()
    return all(check.passed for check in checks)


def run_alone(engine: Engine, prompts: Sequence[Sequence[int]]) -> Run:
    runs: Run = {}
    for i, prompt in enumerate(prompts):
        runs[i] = run_together(engine, [prompt])[0]
    return runs


def run_together(engine: Engine, prompts: Sequence[Sequence[int]]) -> Run:
    seen: dict[str, list[Tensor]] = {str(i): [] for i in range(len(prompts))}
    tokens = {str(i): list(prompt) for i, prompt in enumerate(prompts)}

    def tap(rows: tuple[Row, ...], logits: Tensor) -> None:
        for row, values in zip(rows, logits, strict=True):
            seen[row.sequence.request.id].append(values.float().cpu().clone())

    engine.runner.tap = tap
    sampling = SamplingParams(max_tokens=TOKENS, temperature=0.0, ignore_eos=True)
    for key, prompt in tokens.items():
        engine.add(Request(id=key, prompt=tuple(prompt), sampling=sampling))
    while not engine.idle:
        for delta in engine.step():
            tokens[delta.request_id].extend(delta.token_ids)
    engine.runner.tap = None
    return {int(key): (tokens[key], torch.stack(rows)) for key, rows in seen.items()}


def in_pieces(engine: Engine) -> Engine:
    """The same model and memory behind a scheduler that takes prompts a few tokens at a time."""
    limits = engine.scheduler.limits
    small = SchedulerLimits(SMALL_BUDGET, min(SMALL_BUDGET, limits.max_seqs), limits.max_model_len)
    return Engine(Scheduler(small, engine.scheduler.cache), engine.runner, (), overlap=False)


def against_transformers(folder: Path, engine: Engine, ours: Run) -> Check:
    name = "short prompts against transformers"
    if importlib.util.find_spec("transformers") is None:
        return Check(name, skipped="transformers is not installed")
    from transformers import AutoModelForCausalLM

    dtype = next(engine.runner.model.parameters()).dtype
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()
    theirs: Run = {}
    with torch.inference_mode():
        for i, (tokens, _) in ours.items():
            logits = model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]
            theirs[i] = (tokens, logits[-TOKENS - 1 : -1].float())
    return compare(name, engine, ours, theirs)


def compare(name: str, engine: Engine, first: Run, second: Run) -> Check:
    """Logits are compared up to the first token that differs, since what follows has another history."""
    dtype = next(engine.runner.model.parameters()).dtype
    cosine, largest, relative = 1.0, 0.0, 0.0
    for i, (tokens, logits) in first.items():
        others, other_logits = second[i]
        same = next((n for n in range(TOKENS) if tokens[n - TOKENS] != others[n - TOKENS]), TOKENS - 1) + 1
        a, b = logits[:same], other_logits[:same]
        cosine = min(cosine, float(torch.nn.functional.cosine_similarity(a, b).min()))
        largest = max(largest, float((a - b).abs().max()))
        relative = max(relative, float((a - b).abs().max() / a.abs().max()))
    passed = cosine >= LEAST_COSINE[dtype] and relative <= TOLERANCE[dtype]
    return Check(name, cosine, largest, passed)
