"""The sampler: what is kept, what is drawn, what is reported."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from plait_kernels.sampling import Entries, Penalties, SamplingTensors
from plait_kernels.select import Kernels
from tests.kernels.scans import normal, seeded


def params(
    rows: int,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    uniform: Tensor | None = None,
) -> SamplingTensors:
    return SamplingTensors(
        temperature=torch.full((rows,), temperature),
        top_k=torch.full((rows,), top_k),
        top_p=torch.full((rows,), top_p),
        min_p=torch.full((rows,), min_p),
        uniform=torch.zeros(rows, dtype=torch.float64) if uniform is None else uniform,
    )


def drawn(kernels: Kernels, probabilities: list[float], *, steps: int = 1000, **limits: float) -> Tensor:
    """How often each token comes when the random number walks evenly over [0, 1)."""
    logits = torch.tensor(probabilities).log().expand(steps, -1).contiguous()
    uniform = (torch.arange(steps, dtype=torch.float64) + 0.5) / steps
    tokens = kernels.sample(logits, params(steps, uniform=uniform, **limits))  # type: ignore[arg-type]
    return torch.bincount(tokens, minlength=len(probabilities)) / steps


def test_draws_follow_the_probabilities_in_vocabulary_order(kernels: Kernels) -> None:
    assert torch.allclose(drawn(kernels, [0.1, 0.2, 0.3, 0.4]), torch.tensor([0.1, 0.2, 0.3, 0.4]), atol=2e-3)
    logits = torch.tensor([[0.25] * 4]).log().expand(4, -1)
    uniform = torch.tensor([0.0, 0.26, 0.51, 0.99], dtype=torch.float64)
    assert kernels.sample(logits, params(4, uniform=uniform)).tolist() == [0, 1, 2, 3]


def test_temperature_sharpens(kernels: Kernels) -> None:
    seen = drawn(kernels, [0.2, 0.8], temperature=0.5)
    assert torch.allclose(seen, torch.tensor([0.04, 0.64]) / 0.68, atol=2e-3)


def test_top_k_keeps_the_best_and_of_equals_the_first(kernels: Kernels) -> None:
    assert drawn(kernels, [0.1, 0.4, 0.2, 0.3], top_k=2).gt(0).tolist() == [False, True, False, True]
    assert drawn(kernels, [0.2, 0.2, 0.2, 0.4], top_k=2).gt(0).tolist() == [True, False, False, True]
    assert drawn(kernels, [0.1, 0.4, 0.2, 0.3], top_k=9).gt(0).all()


def test_top_p_keeps_the_crossing_token(kernels: Kernels) -> None:
    assert drawn(kernels, [0.1, 0.4, 0.2, 0.3], top_p=0.5).gt(0).tolist() == [False, True, False, True]
    assert drawn(kernels, [0.1, 0.4, 0.2, 0.3], top_p=0.39).gt(0).tolist() == [False, True, False, False]
    assert drawn(kernels, [0.1, 0.4, 0.2, 0.3], top_p=1.0).gt(0).all()


def test_top_p_counts_what_top_k_left(kernels: Kernels) -> None:
    """Of 0.4 and 0.3 the first holds 57%: enough for 0.5, though not of the whole."""
    assert drawn(kernels, [0.1, 0.4, 0.2, 0.3], top_k=2, top_p=0.5).gt(0).tolist() == [False, True, False, False]


def test_min_p_is_relative_to_the_best(kernels: Kernels) -> None:
    assert drawn(kernels, [0.1, 0.45, 0.15, 0.3], min_p=0.5).gt(0).tolist() == [False, True, False, True]


def test_zero_temperature_is_greedy_beside_sampled_rows(kernels: Kernels) -> None:
    logits = normal(seeded(0), 2, 50)
    mixed = params(2, uniform=torch.tensor([0.999, 0.0], dtype=torch.float64))
    mixed.temperature[0] = 0.0
    assert int(kernels.sample(logits, mixed)[0]) == int(logits[0].argmax())
    mixed.temperature[0] = 1e-30
    assert int(kernels.sample(logits, mixed)[0]) == int(logits[0].argmax())


def test_the_greedy_flag_and_the_unlimited_flag_change_nothing(kernels: Kernels) -> None:
    logits, uniform = normal(seeded(0), 64, 50), torch.rand(64, generator=seeded(1), dtype=torch.float64)
    plain = params(64, uniform=uniform)
    flagged = SamplingTensors(plain.temperature, plain.top_k, plain.top_p, plain.min_p, uniform, unlimited=True)
    assert torch.equal(kernels.sample(logits, plain), kernels.sample(logits, flagged))
    greedy = SamplingTensors(plain.temperature * 0, plain.top_k, plain.top_p, plain.min_p, uniform, all_greedy=True)
    assert torch.equal(kernels.sample(logits, greedy), logits.argmax(-1))


def test_equal_logits_give_the_lowest_id_when_greedy(kernels: Kernels) -> None:
    assert kernels.sample(torch.zeros(2, 40), params(2, temperature=0.0)).tolist() == [0, 0]


def test_a_banned_token_never_comes_even_at_the_end_of_the_range(kernels: Kernels) -> None:
    logits = torch.tensor([[0.0, 1.0, -math.inf, -math.inf]])
    almost_one = torch.tensor([1.0 - 2.0**-53], dtype=torch.float64)
    assert kernels.sample(logits, params(1, uniform=almost_one)).tolist() == [1]
    first = torch.tensor([[-math.inf, 0.0, 1.0]])
    assert kernels.sample(first, params(1)).tolist() == [1]


def test_a_row_is_sampled_alike_whatever_else_is_in_the_batch(kernels: Kernels) -> None:
    logits, uniform = normal(seeded(0), 9, 300) * 3, torch.rand(9, generator=seeded(1), dtype=torch.float64)
    together = kernels.sample(logits, params(9, top_p=0.9, top_k=40, uniform=uniform))
    for row in range(9):
        one = slice(row, row + 1)
        alone = kernels.sample(logits[one], params(1, top_p=0.9, top_k=40, uniform=uniform[one]))
        assert alone.tolist() == together[one].tolist()


def kept_by_definition(logits: Tensor, temperature: float, top_k: int, top_p: float, min_p: float) -> dict[int, float]:
    """Token to probability, from the definition, one token at a time in fp64."""
    scaled = logits.double() / temperature
    probabilities = scaled.softmax(-1).tolist()
    order = sorted(range(len(probabilities)), key=lambda token: (-float(logits[token]), token))
    order = [token for token in order if probabilities[token] >= min_p * max(probabilities)]
    order = order[: top_k or None]
    total = sum(probabilities[token] for token in order)
    kept, mass = [], 0.0
    for token in order:
        if mass >= top_p * total and top_p < 1.0:
            break
        kept.append(token)
        mass += probabilities[token]
    return {token: probabilities[token] / mass for token in sorted(kept)}


def test_any_limits_draw_by_definition(kernels: Kernels) -> None:
    @settings(max_examples=60, deadline=None, derandomize=True)
    @given(
        st.integers(0, 9999),
        st.sampled_from([0.3, 1.0, 1.7]),
        st.sampled_from([0, 1, 3, 17]),
        st.sampled_from([0.13, 0.61, 0.93, 1.0]),
        st.sampled_from([0.0, 0.07, 0.31]),
        st.floats(0, 1, exclude_max=True),
    )
    def run(seed: int, temperature: float, top_k: int, top_p: float, min_p: float, uniform: float) -> None:
        logits = normal(seeded(seed), 1, 37) * 2
        kept = kept_by_definition(logits[0], temperature, top_k, top_p, min_p)
        number = torch.tensor([uniform], dtype=torch.float64)
        limits = params(1, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, uniform=number)
        token = int(kernels.sample(logits, limits))
        assert token in kept
        below = sum(p for other, p in kept.items() if other < token)
        assert below - 1e-5 <= uniform <= below + kept[token] + 1e-5

    run()


def entries(*triples: tuple[int, int, float]) -> Entries:
    rows, tokens, values = zip(*triples, strict=True)
    return Entries(torch.tensor(rows), torch.tensor(tokens), torch.tensor(values))


def test_penalties_change_only_their_entries_and_a_copy(kernels: Kernels) -> None:
    logits = torch.tensor([[1.0, -1.0, 2.0, 0.5], [1.0, -1.0, 2.0, 0.5]])
    before = logits.clone()
    penalties = Penalties(
        repeated=entries((0, 0, 2.0), (0, 1, 2.0)),
        added=entries((0, 0, -0.25), (0, 0, -0.5), (1, 3, 100.0)),
        banned=entries((1, 2, 0.0)),
    )
    seen = kernels.penalise(logits, penalties)
    assert seen.tolist() == [[0.5 - 0.75, -2.0, 2.0, 0.5], [1.0, -1.0, -math.inf, 100.5]]
    assert torch.equal(logits, before)
    assert torch.equal(kernels.penalise(logits, Penalties()), logits)


def test_logprobs_name_the_chosen_and_the_best(kernels: Kernels) -> None:
    logits, chosen = normal(seeded(0), 6, 50), torch.tensor([3, 1, 4, 1, 5, 9])
    seen = kernels.logprobs(logits, chosen, 5)
    truth = logits.double().log_softmax(-1)
    assert torch.allclose(seen.chosen.double(), truth.gather(1, chosen[:, None])[:, 0], atol=1e-5)
    assert torch.allclose(seen.top.double(), truth.topk(5).values, atol=1e-5)
    assert torch.equal(seen.top_ids, logits.topk(5).indices)
    assert torch.equal(seen.ranks, (truth > truth.gather(1, chosen[:, None])).sum(-1) + 1)


@pytest.mark.parametrize("k", [1, 3, 8])
def test_a_chosen_token_in_the_list_has_the_identical_float(kernels: Kernels, k: int) -> None:
    logits = normal(seeded(0), 20, 8)
    chosen = logits.argsort(descending=True)[:, k - 1]
    seen = kernels.logprobs(logits, chosen, k)
    assert torch.equal(seen.chosen, seen.top[:, k - 1])
    assert torch.equal(seen.ranks, torch.full((20,), k))


def test_logprobs_of_equals_come_in_vocabulary_order(kernels: Kernels) -> None:
    assert kernels.logprobs(torch.zeros(1, 30), torch.tensor([7]), 4).top_ids.tolist() == [[0, 1, 2, 3]]


def test_logprobs_without_alternatives_are_empty_beside_the_chosen(kernels: Kernels) -> None:
    seen = kernels.logprobs(normal(seeded(0), 3, 30), torch.tensor([7, 8, 9]), 0)
    assert seen.top.shape == (3, 0)
    assert seen.chosen.shape == (3,)
