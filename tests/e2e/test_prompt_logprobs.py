"""Case 44: the log-probabilities of a prompt do not depend on what is cached."""

from typing import Any

import httpx
import pytest

from plait_server.bench.words import words

A, B = words(120, "a"), words(120, "b")


def scored(client: httpx.Client, prompt: str) -> dict[str, Any]:
    body = {"prompt": prompt, "max_tokens": 1, "temperature": 0, "echo": True, "logprobs": 3}
    choice: dict[str, Any] = client.post("/v1/completions", json=body).json()["choices"][0]
    return choice


def test_case_44_a_prompts_log_probabilities_are_the_same_cold_and_warm(demo: str) -> None:
    with httpx.Client(base_url=demo, timeout=120) as client:
        cold = {prompt: scored(client, prompt) for prompt in (A + B, B + A)}
        for prompt in (A, B, A + B, B + A):
            usage = client.post("/v1/completions", json={"prompt": prompt + " end", "max_tokens": 4}).json()["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] > 100  # There is something to be wrong with.
        for prompt in (B + A, A + B):
            warm = scored(client, prompt)
            assert warm["text"] == cold[prompt]["text"]
            for found, expected in zip(
                warm["logprobs"]["token_logprobs"], cold[prompt]["logprobs"]["token_logprobs"], strict=True
            ):
                assert found == pytest.approx(expected, abs=1e-3)
