"""The whole engine on a GPU: its answers are those of the CPU, whatever is captured, overlapped or reused."""

import importlib.util
from functools import cache
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

if not torch.cuda.is_available():
    pytest.skip("needs an NVIDIA GPU", allow_module_level=True)
if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed", allow_module_level=True)

from benchmarks.gpu.drift_demo import prompts_of
from demo.heldout import look_ups
from plait_engine.demo_model import DEMO_FOLDER
from plait_engine.llm import LLM, Completion
from plait_engine.request import SamplingParams

pytestmark = pytest.mark.gpu

DEVICE = "cuda"
TOKENS = 24
GREEDY = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True, logprobs=2)
TIED = {"float32": 1e-3, "bfloat16": 0.25}
"""Two best log-probabilities as close as this may come in either order; behind such a token, another answer is right.
Of two ways to add in bf16 one logit in 20 is a part of 256 apart."""
SMALL: dict[str, Any] = {
    "memory_bytes": 1 << 30,
    "max_seqs": 64,
    "max_batch_tokens": 1024,
    "max_model_len": 640,
    "tune": False,
}
"""Little to warm up, and room for many such engines at the same time."""


@cache
def prompts() -> list[list[int]]:
    """Questions about different facts, 190 to 512 tokens."""
    tokenizer = Tokenizer.from_file(str(DEMO_FOLDER / "tokenizer.json"))
    return prompts_of(list(look_ups(tokenizer, 64, 1, (256, 512))))


def answers(device: str, dtype: str = "float32", **options: Any) -> list[Completion]:
    torch.backends.cuda.matmul.allow_tf32 = False
    llm = LLM(str(DEMO_FOLDER), device=device, dtype=dtype, **SMALL, **options)
    return llm.generate(prompts(), GREEDY)


@cache
def cold(dtype: str = "float32") -> list[Completion]:
    return answers(DEVICE, dtype, prefix_reuse=False)


def assert_same(seen: list[Completion], expected: list[Completion], dtype: str) -> None:
    """Up to the first tie of each answer; which must leave something to compare."""
    compared = 0
    for prompt, (one, other) in enumerate(zip(seen, expected, strict=True)):
        assert len(one.token_ids) == len(other.token_ids) == TOKENS
        gaps = [entry.top[0][1] - entry.top[1][1] for entry in other.logprobs]
        tie = next((i for i, gap in enumerate(gaps) if gap < TIED[dtype]), TOKENS)
        assert one.token_ids[:tie] == other.token_ids[:tie], f"prompt {prompt}"
        compared += tie
    assert compared > len(prompts()) * TOKENS // 3, f"ties everywhere: {compared} tokens compared"


def test_64_at_once_are_what_the_cpu_says() -> None:
    assert len({tuple(answer.token_ids) for answer in cold()}) > 16
    assert_same(cold(), answers("cpu", prefix_reuse=False), "float32")


def test_the_plain_loop_gives_the_same() -> None:
    assert_same(answers(DEVICE, prefix_reuse=False, overlap=False), cold(), "float32")


def test_reuse_gives_the_same() -> None:
    """The second time, every prompt is found."""
    torch.backends.cuda.matmul.allow_tf32 = False
    llm = LLM(str(DEMO_FOLDER), device=DEVICE, dtype="float32", **SMALL)
    assert_same(llm.generate(prompts(), GREEDY), cold(), "float32")
    again = llm.generate(prompts(), GREEDY)
    assert_same(again, cold(), "float32")
    assert sum(answer.cached_tokens > 0 for answer in again) > 32


def test_in_bf16_the_plain_loop_and_reuse_give_the_same() -> None:
    assert_same(answers(DEVICE, "bfloat16", overlap=False), cold("bfloat16"), "bfloat16")
