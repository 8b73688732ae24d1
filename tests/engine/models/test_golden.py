"""Every architecture's logits against transformers', however a prompt is cut and whatever runs beside it."""

from collections.abc import Callable
from itertools import permutations

import pytest
import torch
from torch import Tensor

from plait_engine.models.base import Model
from tests.engine.models.driver import IMPLEMENTATIONS, Driver, Sequence, load
from tests.golden import SPECS, Golden

TOLERANCE = 1e-4
EDGES = [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 33, 65]
"""Around the page (4), the convolution (3 and 4), the window (8) and their multiples."""

Goldens = Callable[[str], Golden]


@pytest.fixture(scope="module", params=SPECS)
def golden(request: pytest.FixtureRequest, goldens: Goldens) -> Golden:
    return goldens(request.param)


@pytest.fixture(scope="module", params=IMPLEMENTATIONS)
def model(request: pytest.FixtureRequest, golden: Golden) -> Model:
    return load(golden.folder, implementation=request.param)


@pytest.fixture
def driver(model: Model) -> Driver:
    return Driver(model)


def chunked(driver: Driver, tokens: Tensor, budget: int, sequence: Sequence | None = None) -> Tensor:
    sequence = sequence or driver.sequence()
    return torch.cat([driver.run([(sequence, chunk)])[0] for chunk in tokens.split(budget)])


def assert_close(logits: Tensor, expected: Tensor) -> None:
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, expected, rtol=0, atol=TOLERANCE)


def test_whole_prompts_of_edge_lengths_give_the_same_logits(driver: Driver, golden: Golden) -> None:
    for length in EDGES:
        assert_close(chunked(driver, golden.prompt(65)[:length], length), golden.logits(65)[:length])


@pytest.mark.parametrize("budget", [3, 5, 16, 17, 64])
def test_chunks_give_the_logits_of_the_whole_prompt(driver: Driver, golden: Golden, budget: int) -> None:
    assert_close(chunked(driver, golden.prompt(65), budget), golden.logits(65))


def test_decoding_from_the_first_token_gives_the_logits_of_the_whole_prompt(driver: Driver, golden: Golden) -> None:
    assert_close(chunked(driver, golden.prompt(33), 1), golden.logits(33))


def test_a_continuation_of_many_tokens_on_a_warm_state_is_a_continuation(driver: Driver, golden: Golden) -> None:
    """Not one step, and not a fresh start (CASES 27)."""
    sequence, tokens, start = driver.sequence(), golden.prompt(33), 0
    for count in (10, 7, 1, 4):
        (logits,) = driver.run([(sequence, tokens[start : start + count])])
        assert_close(logits, golden.logits(33)[start : start + count])
        start += count


def test_mixed_steps_in_any_order_give_each_sequence_its_own_logits(driver: Driver, golden: Golden) -> None:
    """Two decodes, a first chunk, a middle chunk, a one-token prompt (CASES 25, 26, 28)."""
    starts, counts = (9, 16, 0, 5, 0), (1, 1, 7, 12, 1)
    for order in list(permutations(range(5)))[::17]:
        sequences = [driver.sequence() for _ in starts]
        for seed, start in enumerate(starts):
            if start:
                chunked(driver, golden.prompt(33, seed)[:start], 6, sequences[seed])
        pieces = [(sequences[i], golden.prompt(33, i)[starts[i] : starts[i] + counts[i]]) for i in order]
        for i, logits in zip(order, driver.run(pieces, pad_decodes=4), strict=True):
            assert_close(logits, golden.logits(33, i)[starts[i] : starts[i] + counts[i]])
        for sequence in sequences:
            driver.drop(sequence)


def test_padded_decodes_touch_no_state_but_their_own(driver: Driver, golden: Golden) -> None:
    """Three sequences decode in rows padded to eight, one is parked outside the batch (CASES 24)."""
    sequences = [driver.sequence() for _ in range(4)]
    for i, sequence in enumerate(sequences):
        chunked(driver, golden.prompt(33, i)[: 6 + i], 4, sequence)
    for step in range(8):
        pieces = [(s, golden.prompt(33, i)[6 + i + step][None]) for i, s in enumerate(sequences[:3])]
        for i, logits in enumerate(driver.run(pieces, pad_decodes=8)):
            assert_close(logits, golden.logits(33, i)[6 + i + step][None])
    (logits,) = driver.run([(sequences[3], golden.prompt(33, 3)[9:20])])
    assert_close(logits, golden.logits(33, 3)[9:20])


def test_a_slot_taken_from_another_sequence_starts_fresh(driver: Driver, golden: Golden) -> None:
    """Short prompts churn through two slots beside a running decode (CASES 3)."""
    running = driver.sequence()
    chunked(driver, golden.prompt(65, 9)[:8], 8, running)
    for step in range(20):
        length = 1 + step % 5
        fresh = driver.sequence()
        pieces = [(running, golden.prompt(65, 9)[8 + step][None]), (fresh, golden.prompt(33, step % 3)[:length])]
        decoded, started = driver.run(pieces)
        assert_close(decoded, golden.logits(65, 9)[8 + step][None])
        assert_close(started, golden.logits(33, step % 3)[:length])
        driver.drop(fresh)


def test_forgetting_the_state_moves_the_logits(driver: Driver, golden: Golden) -> None:
    """SENSITIVE: else the tests above prove nothing about states."""
    if all(group.paged for group in driver.model.plan.groups):
        pytest.skip("keeps no slots")
    sequence = driver.sequence()
    chunked(driver, golden.prompt(65)[:40], 40, sequence)
    driver.zero_state(sequence)
    (logits,) = driver.run([(sequence, golden.prompt(65)[40:48])])
    assert (logits - golden.logits(65)[40:48]).abs().amax(1)[0] > 100 * TOLERANCE
