"""The sampler as Triton kernels, without sorting a vocabulary.

Best of each row; then for a ladder of distances below the best, how many tokens and how much probability lie within;
then the ids of those within the rung that surely holds all that can be kept, in vocabulary order; and one program a row
that finds the exact borders among these few, and draws.
"""

import torch
from torch import Tensor

from plait_kernels.sampling import SamplingTensors
from plait_kernels.sampling.reference import penalise
from plait_kernels.sampling.triton_draw import draw_from_all, draw_within_limits
from plait_kernels.sampling.triton_ladder import count_rungs
from plait_kernels.sampling.triton_logprobs import logprobs
from plait_kernels.sampling.triton_rows import ranked

__all__ = ["logprobs", "penalise", "sample"]
"""``penalise`` stays scattered writes in PyTorch: it touches a few entries."""


def sample(logits: Tensor, params: SamplingTensors) -> Tensor:
    if not len(logits):
        return torch.empty(0, dtype=torch.int64, device=logits.device)
    rows = ranked(logits)
    if params.all_greedy:
        return rows.best_ids
    counted = count_rungs(rows, params.temperature, None)
    draw = draw_from_all if params.unlimited else draw_within_limits
    return draw(rows, counted, params)
