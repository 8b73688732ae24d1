"""Triton's sampler against the definition and against the reference."""

import math

import pytest
import torch
from torch import Tensor

from tests.kernels.triton_world import MARKS, triton_kernels  # isort: skip  (before anything imports triton)
from plait_kernels.sampling import SamplingTensors, reference, triton_rows
from plait_kernels.select import Kernels
from tests.kernels.scans import normal, seeded
from tests.kernels.test_sampling import (  # noqa: F401  (collected here)
    kept_by_definition,
    params,
    test_a_banned_token_never_comes_even_at_the_end_of_the_range,
    test_a_chosen_token_in_the_list_has_the_identical_float,
    test_equal_logits_give_the_lowest_id_when_greedy,
    test_logprobs_name_the_chosen_and_the_best,
    test_logprobs_of_equals_come_in_vocabulary_order,
    test_logprobs_without_alternatives_are_empty_beside_the_chosen,
    test_penalties_change_only_their_entries_and_a_copy,
    test_zero_temperature_is_greedy_beside_sampled_rows,
)

pytestmark = MARKS


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    kernels = triton_kernels()
    assert isinstance(kernels, Kernels)
    return kernels


@pytest.fixture
def short_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of some hundred tokens have several parts and blocks."""
    monkeypatch.setattr(triton_rows, "PART", 64)
    monkeypatch.setattr(triton_rows, "BLOCK", 32)


def rows_of(limits: list[tuple[float, int, float, float]], uniform: list[float]) -> SamplingTensors:
    temperature, top_k, top_p, min_p = zip(*limits, strict=True)
    return SamplingTensors(
        torch.tensor(temperature),
        torch.tensor(top_k),
        torch.tensor(top_p),
        torch.tensor(min_p),
        torch.tensor(uniform, dtype=torch.float64),
    )


LIMITS = [
    (1.0, 0, 1.0, 0.0),
    (0.3, 3, 1.0, 0.0),
    (1.7, 0, 0.61, 0.0),
    (1.0, 17, 0.93, 0.0),
    (1.0, 0, 1.0, 0.07),
    (0.7, 40, 0.13, 0.31),
    (1.0, 1, 1.0, 0.0),
    (1.0, 9999, 0.5, 0.0),
    (0.0, 5, 0.5, 0.1),
]


@pytest.mark.usefixtures("short_parts")
@pytest.mark.parametrize("seed", range(2))
def test_rows_with_different_limits_draw_by_definition(kernels: Kernels, seed: int) -> None:
    logits = normal(seeded(seed), len(LIMITS), 150) * 2
    uniform = torch.rand(len(LIMITS), generator=seeded(seed + 9), dtype=torch.float64).tolist()
    tokens = kernels.sample(logits, rows_of(LIMITS, uniform)).tolist()
    for row, (temperature, top_k, top_p, min_p) in enumerate(LIMITS):
        if temperature == 0.0:
            assert tokens[row] == int(logits[row].argmax())
            continue
        kept = kept_by_definition(logits[row], temperature, top_k, top_p, min_p)
        below = sum(p for token, p in kept.items() if token < tokens[row])
        assert tokens[row] in kept
        assert below - 1e-5 <= uniform[row] <= below + kept[tokens[row]] + 1e-5


@pytest.mark.usefixtures("short_parts")
def test_of_equals_the_first_are_kept(kernels: Kernels) -> None:
    """Of 2.7 + 149 a share of 5% is token 77 and the first five of the others."""
    logits = torch.zeros(4, 150)
    logits[:, 77] = 1.0
    limits = [(1.0, 4, 1.0, 0.0), (1.0, 4, 1.0, 0.0), (1.0, 0, 0.05, 0.0), (1.0, 0, 0.05, 0.0)]
    seen = kernels.sample(logits, rows_of(limits, [0.0, 0.5, 0.5, 0.64])).tolist()
    assert seen == [0, 2, 3, 4]


@pytest.mark.usefixtures("short_parts")
def test_nothing_limited_draws_what_the_reference_draws(kernels: Kernels) -> None:
    logits, uniform = normal(seeded(3), 12, 150) * 3, torch.rand(12, generator=seeded(4), dtype=torch.float64)
    plain = params(12, uniform=uniform)
    open_ended = SamplingTensors(plain.temperature, plain.top_k, plain.top_p, plain.min_p, uniform, unlimited=True)
    assert torch.equal(kernels.sample(logits, open_ended), reference.sample(logits, open_ended))


@pytest.mark.usefixtures("short_parts")
def test_greedy_takes_the_first_of_the_best(kernels: Kernels) -> None:
    logits = normal(seeded(5), 5, 150)
    logits[0, [10, 140]] = 9.0
    logits[1] = -math.inf
    logits[1, 149] = 0.0
    greedy = params(5, temperature=0.0)
    flagged = SamplingTensors(
        greedy.temperature, greedy.top_k, greedy.top_p, greedy.min_p, greedy.uniform, all_greedy=True
    )
    seen = kernels.sample(logits, flagged)
    assert torch.equal(seen, logits.argmax(-1))
    assert seen[:2].tolist() == [10, 149]


@pytest.mark.usefixtures("short_parts")
def test_a_row_is_sampled_alike_whatever_else_is_in_the_batch(kernels: Kernels) -> None:
    logits = normal(seeded(0), 4, 150) * 3
    together = kernels.sample(logits, rows_of(LIMITS[2:6], [0.1, 0.5, 0.7, 0.9]))
    for row, (limit, number) in enumerate(zip(LIMITS[2:6], [0.1, 0.5, 0.7, 0.9], strict=True)):
        alone: Tensor = kernels.sample(logits[row : row + 1], rows_of([limit], [number]))
        assert alone.tolist() == together[row : row + 1].tolist()


@pytest.mark.usefixtures("short_parts")
def test_logprobs_over_several_parts(kernels: Kernels) -> None:
    logits, chosen = normal(seeded(1), 3, 150) * 4, torch.tensor([3, 149, 64])
    seen, truth = kernels.logprobs(logits, chosen, 5), reference.logprobs(logits, chosen, 5)
    assert torch.equal(seen.top_ids, truth.top_ids)
    assert torch.equal(seen.ranks, truth.ranks)
    assert torch.allclose(seen.top, truth.top, atol=1e-5)
    assert torch.allclose(seen.chosen, truth.chosen, atol=1e-5)
