"""Hopper's prefill attention compiles without a GPU to what it is for: wgmma, the copy engine, no spilled registers."""

import pytest

from tests.kernels.uninterpreted import output_of


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("model", ["M1", "M2", "M3w", "d128"])
def test_every_configuration_becomes_hopper_code(model: str) -> None:
    """In a process of its own: here the interpreter may be on."""
    assert output_of("benchmarks.gpu.attention_prefill", "--compile-only", "--models", model)
