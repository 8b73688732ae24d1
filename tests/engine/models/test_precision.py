"""Rounding: 16-bit models against fp32 logits, state dtypes over thousands of tokens (CASES 49), fp32 logits."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from plait_engine.state.spec import SlotSpec
from tests.engine.models.driver import IMPLEMENTATIONS, Driver, load
from tests.golden import SPECS, Golden, from_folder, reference_logits

Goldens = Callable[[str], Golden]
PROMPTS = range(4)


def root_mean_square(errors: list[Tensor]) -> float:
    return torch.stack(errors).square().mean().sqrt().item()


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", SPECS)
def test_16_bit_errors_are_no_larger_than_those_of_transformers(
    goldens: Goldens, name: str, dtype: torch.dtype, implementation: str
) -> None:
    """Against transformers' fp32 logits, over whole prompts and over decoding."""
    golden = goldens(name)
    theirs, driver = from_folder(golden, dtype), Driver(load(golden.folder, dtype, implementation=implementation))
    their_errors, prefill_errors, decode_errors = [], [], []
    for seed in PROMPTS:
        tokens, truth = golden.prompt(33, seed), golden.logits(33, seed)
        their_errors.append(reference_logits(theirs, tokens) - truth)
        prefill_errors.append(driver.run([(driver.sequence(), tokens)])[0] - truth)
        sequence = driver.sequence()
        decode_errors.append(torch.cat([driver.run([(sequence, token[None])])[0] for token in tokens]) - truth)
    allowed = 1.25 * root_mean_square(their_errors)
    assert root_mean_square(prefill_errors) <= allowed
    assert root_mean_square(decode_errors) <= allowed


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("state_dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("name", SPECS)
def test_every_accepted_dtype_generates(
    goldens: Goldens, name: str, dtype: torch.dtype, state_dtype: torch.dtype, implementation: str
) -> None:
    golden = goldens(name)
    driver = Driver(load(golden.folder, dtype, state_dtype, implementation))
    sequence = driver.sequence()
    (logits,) = driver.run([(sequence, golden.prompt(9))])
    (logits,) = driver.run([(sequence, logits[-1:].argmax(-1))])
    assert logits.dtype == torch.float32
    assert logits.isfinite().all()
    assert logits.std() > 0.1


@pytest.mark.parametrize(("name", "implementation"), [("granite_dense", "reference"), ("qwen3_5", "compiled")])
def test_an_fp32_state_is_still_exact_after_2000_steps_and_a_bf16_state_is_not(
    goldens: Goldens, name: str, implementation: str
) -> None:
    golden, steps = goldens(name), 2000
    tokens = golden.prompt(steps + 1)
    truth = golden.logits(steps + 1)[-1]
    errors = []
    for state_dtype in (torch.float32, torch.bfloat16):
        driver = Driver(load(golden.folder, state_dtype=state_dtype, implementation=implementation), units=900)
        sequence = driver.sequence()
        driver.run([(sequence, tokens[:1])])
        for token in tokens[1:]:
            (logits,) = driver.run([(sequence, token[None])])
        errors.append((logits[0] - truth).abs().max().item())
    exact, rounded = errors
    assert exact < 1e-4
    assert 10 * 1e-4 < rounded < 0.5


def test_recurrent_matrices_are_fp32_and_convolution_windows_are_not(goldens: Goldens) -> None:
    """In a bf16 model with default settings."""
    plan = load(goldens("qwen3_5").folder, torch.bfloat16).plan
    (slot,) = [group.spec for group in plan.groups if isinstance(group.spec, SlotSpec)]
    assert {t.name: t.dtype for t in slot.tensors} == {"conv": torch.bfloat16, "delta": torch.float32}


def test_decay_parameters_keep_the_checkpoints_precision(goldens: Goldens) -> None:
    golden = goldens("granite_dense")
    model = load(golden.folder, torch.bfloat16)
    theirs = golden.model.state_dict()
    found = {name: p for name, p in model.named_parameters() if name.endswith(("A_log", ".D", "dt_bias"))}
    assert len(found) == 9
    for name, parameter in found.items():
        assert torch.equal(parameter, theirs[f"model.{name}"])
