"""Every Triton kernel compiles for GPUs that are not here, at the shapes of real models, and fits into their memory."""

import pytest

from tests.kernels.uninterpreted import output_of


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("capability", [80, 89, 90])
@pytest.mark.parametrize("match", ["decode 32,sample M1,mix 32", "1x1024,logprobs,copy_units", "linear M1 32"])
def test_kernels_compile_without_a_gpu(capability: int, match: str) -> None:
    """In a process of its own: here the interpreter may be on."""
    options = ("--compile-only", "--processes", "2", "--capability", str(capability), "--match", match)
    assert output_of("benchmarks.gpu.kernels", *options)
