"""The gated delta rule with a turned state compiles without a GPU: no product waits for another, no register spills."""

import pytest

from tests.kernels.uninterpreted import output_of


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("module", "only"),
    [
        ("gdn_prefill", "turned 64"),
        ("gdn_prefill", "turned 32"),
        ("gdn_prefill", "hopper"),
        ("ssd_prefill", "128 "),
        ("ssd_prefill", "64 64"),
    ],
)
def test_every_form_becomes_code_without_needless_waits(module: str, only: str) -> None:
    """In a process of its own: here the interpreter may be on."""
    assert output_of("benchmarks.gpu." + module, "--compile-only", "--only", only)
