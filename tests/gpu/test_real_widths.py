"""Models with the widths of real ones and few layers: a hit answers as a cold run does, with the kernels chosen here.

Tiny models never reach Hopper's attention, nor the tables of configurations; here both serve recorded steps that go on
from restored states. In bf16 two ways to cut a prompt into steps round differently, so log-probabilities are compared.
"""

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu.models import write_model
from plait_engine.config import LoadFormat
from plait_engine.llm import LLM, Completion
from plait_engine.request import SamplingParams

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]

LAYERS = {
    "m1": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
    "m2": ["mamba", "attention", "mamba"],
    "m3": ["sliding_attention", "full_attention", "sliding_attention"],
}
VOCAB, INNER, PREFIX, OWN = 2048, 1024, 1500, (100, 1, 300, 64, 17, 128)
FIRST_TOKEN = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, logprobs=20)


@dataclass(frozen=True)
class Answers:
    cold: list[Completion]
    warm: list[Completion]
    recorded: int
    """Steps with pieces of prompts that were recorded by the end."""


def folder_of(model: str, folder: Path) -> str:
    config: dict[str, Any] = write_model(model, folder)
    config.update(layer_types=LAYERS[model], num_hidden_layers=len(LAYERS[model]), vocab_size=VOCAB)
    config.pop("sliding_window_pattern", None)
    config.update({name: INNER for name in ("intermediate_size", "shared_intermediate_size") if name in config})
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


@pytest.fixture(scope="module", params=LAYERS)
def answers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Answers:
    return answered(folder_of(request.param, tmp_path_factory.mktemp("model")), "cuda")


def answered(folder: str, device: str) -> Answers:
    draw = random.Random(1)
    prefixes = [draw.choices(range(VOCAB), k=PREFIX) for _ in range(2)]
    prompts = [[*prefixes[i % 2], *draw.choices(range(VOCAB), k=n)] for i, n in enumerate(OWN)]

    def engine(*, prefix_reuse: bool) -> LLM:
        settings = {"device": device, "memory_bytes": 4 << 30, "max_seqs": 16, "max_model_len": 4096, "tune": False}
        return LLM(folder, load_format=LoadFormat.RANDOM, dtype="bfloat16", prefix_reuse=prefix_reuse, **settings)

    llm = engine(prefix_reuse=False)
    cold = [llm.generate([prompt], FIRST_TOKEN)[0] for prompt in prompts]
    llm = engine(prefix_reuse=True)
    for prefix in prefixes:
        llm.generate([prefix], FIRST_TOKEN)
    warm = llm.generate(prompts, FIRST_TOKEN)
    graphs = llm.engine.runner.graphs
    recorded = sum(bool(shape.pieces) for shape, recording in graphs._recorded.items() if recording is not None)
    return Answers(cold, warm, recorded)


def test_they_are_hits_and_go_on_in_recorded_steps(answers: Answers) -> None:
    assert all(completion.cached_tokens == 0 for completion in answers.cold)
    assert all(completion.cached_tokens > PREFIX - 20 for completion in answers.warm)
    assert answers.recorded


def test_first_tokens_have_the_log_probabilities_of_a_cold_run(answers: Answers) -> None:
    for cold, warm in zip(answers.cold, answers.warm, strict=True):
        one, other = top(cold), top(warm)
        shared = one.keys() & other.keys()
        best, second, *_, last = sorted(one.values(), reverse=True)
        assert len(shared) >= len(one) // 2
        assert max(abs(one[token] - other[token]) for token in shared) < 0.05 * (best - last) + 0.25 * (second - last)


def test_other_prompts_have_other_likely_tokens(answers: Answers) -> None:
    """CONTROL"""
    one, other = map(top, answers.cold[:2])
    assert len(one.keys() & other.keys()) < len(one) // 4


def top(completion: Completion) -> dict[int, float]:
    """The 20 likeliest first tokens, of 2,048, and their log-probabilities."""
    return dict(completion.logprobs[0].top)
