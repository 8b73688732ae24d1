# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
"""``checksum_units`` as one Triton launch: each program adds its part of one unit to the sum."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from plait_kernels.checksum_units.reference import WORD
from plait_kernels.copy_units.reference import GRANULE_BYTES

BLOCK = 4096
"""Words of a program: enough that the additions to the one sum are few."""


@triton.jit(do_not_specialize_on_alignment=["units"])
def _checksum_units(arena, units, out, words, WORDS_PER_GRANULE: tl.constexpr, BLOCK: tl.constexpr):
    place = tl.program_id(0)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    begin = tl.load(units + place).to(tl.int64) * WORDS_PER_GRANULE
    value = tl.load(arena + begin + at, mask=at < words, other=0)
    weight = 2 * (place.to(tl.int64) * words + at) + 1
    tl.atomic_add(out, tl.sum(value * weight, axis=0), sem="relaxed")


def checksum_units(arena: Tensor, units: Tensor, n_bytes: int) -> Tensor:
    out = torch.zeros((), dtype=torch.int64, device=arena.device)
    words = n_bytes // WORD
    if len(units) and words:
        _checksum_units[(len(units), triton.cdiv(words, BLOCK))](
            arena.view(torch.int64),
            units,
            out,
            words,
            WORDS_PER_GRANULE=GRANULE_BYTES // WORD,
            BLOCK=BLOCK,
            num_warps=8,
        )
    return out
