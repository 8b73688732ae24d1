# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
"""Kernels that start while the one before them ends: programmatic dependent launch, on Hopper and later.

A decode step is hundreds of kernels of a few microseconds each, and between two of them the memory stands still. A
kernel that starts early has its programs in place, and weights on their way to the cache, when the one before it is
done. What another kernel writes, or still reads, is touched only behind ``wait_for_others``; that one waits for the
kernel before, which waited for the one before it, so whoever is behind the wait is behind all of them.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

HOPPER = (9, 0)
LINE = tl.constexpr(64)
"""bf16 values that one prefetch brings: 128 bytes, a line of the cache."""

_known: dict[torch.device, bool] = {torch.device("cpu"): False}


def starts_early(device: torch.device) -> dict[str, Any]:
    """What such a kernel is launched with: ``EARLY``, and where that is true the option that makes it so."""
    if device not in _known:
        _known[device] = torch.cuda.get_device_capability(device) >= HOPPER
    return {"EARLY": True, "launch_pdl": True} if _known[device] else {"EARLY": False}


@triton.jit
def wait_for_others(EARLY: tl.constexpr):
    """Let the next kernel start, and wait for the one before. A kernel's first statement, but for prefetches."""
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()


@triton.jit
def prefetch(places):
    """Bring the cache lines of ``places``, a block of pointers, to the second-level cache. Weights only: nobody writes
    them."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [places], dtype=tl.int32, is_pure=False, pack=1
    )
