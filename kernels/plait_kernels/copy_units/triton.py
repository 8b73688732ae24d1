# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
"""``copy_units`` as one Triton launch over all units."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from plait_kernels.copy_units.reference import GRANULE_BYTES
from plait_kernels.tuning import Tunable

COPY = Tunable(
    "copy_units",
    {"BLOCK": 4096, "num_warps": 4},
    tuple({"BLOCK": b, "num_warps": w} for b in (1024, 2048, 4096, 8192) for w in (4, 8)),
)
WORD = 8
"""Bytes that an element of the copy has; the arena's size and units are multiples of it."""


@triton.jit
def _copy_units(arena, sources, targets, words, WORDS_PER_GRANULE: tl.constexpr, BLOCK: tl.constexpr):
    unit = tl.program_id(0)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    source = tl.load(sources + unit).to(tl.int64) * WORDS_PER_GRANULE
    target = tl.load(targets + unit).to(tl.int64) * WORDS_PER_GRANULE
    tl.store(arena + target + at, tl.load(arena + source + at, mask=at < words), mask=at < words)


def copy_units(arena: Tensor, sources: Tensor, targets: Tensor, n_bytes: int) -> None:
    if n_bytes % WORD:
        raise ValueError(f"units of {n_bytes} bytes are not whole words of {WORD} bytes")
    if len(sources) and n_bytes:
        config = COPY.config(arena.device, n_bytes)
        words = n_bytes // WORD
        _copy_units[(len(sources), triton.cdiv(words, config["BLOCK"]))](
            arena.view(torch.int64), sources, targets, words, WORDS_PER_GRANULE=GRANULE_BYTES // WORD, **config
        )
