"""The order of additions of the compiled product holds for narrower vectors than this machine's, too."""

import platform
import subprocess
from pathlib import Path

import pytest
import torch

from plait_kernels.cpu import build
from plait_kernels.cpu.library import Library
from plait_kernels.linear.cpu import cpu_linear
from tests.kernels.scans import normal, seeded


@pytest.mark.slow
@pytest.mark.parametrize("processor", ["haswell", "nehalem"])
def test_few_and_many_rows_add_alike_in_vectors_of_any_width(tmp_path: Path, processor: str) -> None:
    if platform.machine() != "x86_64" or (processor == "haswell" and " avx2 " not in Path("/proc/cpuinfo").read_text()):
        pytest.skip("these processors are x86-64's")
    try:
        compiler = build.target().compiler
    except build.BuildError as error:
        pytest.skip(str(error))
    flags = [flag for flag in build.FLAGS if not flag.startswith("-march")]
    sources = [build.SOURCES / name for name in ("linear.cpp", "pool.cpp")]
    library = tmp_path / "narrow.so"
    subprocess.run([compiler, *flags, f"-march={processor}", *sources, "-o", library], check=True)
    linear = cpu_linear(Library(library))
    for dtype in (torch.float32, torch.bfloat16):
        for outs, ins in ((130, 320), (48, 321), (7, 40)):
            x, weight = normal(seeded(0), 350, ins).to(dtype), normal(seeded(1), outs, ins).to(dtype)
            whole = linear(x, weight)
            torch.testing.assert_close(whole, torch.nn.functional.linear(x, weight), rtol=2e-2, atol=2e-2)
            for size in (1, 3, 16, 31, 32, 45, 337):
                assert torch.equal(torch.cat([linear(rows, weight) for rows in x.split(size)]), whole)
