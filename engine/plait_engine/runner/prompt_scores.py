"""Log-probabilities of prompt tokens, collected chunk by chunk."""

import torch
from torch import Tensor

from plait_engine.models.base import Model
from plait_engine.request import TokenLogprobs
from plait_engine.runner.builder import BuiltBatch
from plait_engine.runner.sampler import to_host
from plait_engine.scheduler.step_plan import Row, StepPlan
from plait_kernels.select import Kernels

HEAD_SLICE = 256
"""Rows of the LM head at a time: a long prompt's logits are never there all at once."""


def score_prompts(plan: StepPlan, built: BuiltBatch, hidden: Tensor, model: Model, kernels: Kernels) -> None:
    """For each row whose request wants them and has not had them, append to ``sequence.prompt_logprobs``.

    The logits at position p score the prompt token at p + 1. Needs the tokens on the host, so it waits for the device.
    """
    segments = built.batch.segments
    pads = segments.decodes - plan.decodes
    for place, row in enumerate(plan.rows):
        wanted = row.sequence.request.sampling.prompt_logprobs
        if wanted is None or row.sequence.announced or row.start >= row.sequence.prompt_length:
            continue
        begin = segments.starts_host[place if place < plan.decodes else place + pads]
        count = min(row.count, row.sequence.prompt_length - 1 - row.start)
        del row.sequence.prompt_logprobs[row.start :]  # A preempted prompt is scored again from where it starts over.
        for first in range(0, count, HEAD_SLICE):
            piece = hidden[begin + first : begin + min(first + HEAD_SLICE, count)]
            row.sequence.prompt_logprobs.extend(_score(piece, row, first, wanted, model, kernels))


def _score(
    hidden: Tensor, row: Row, first: int, wanted: int, model: Model, kernels: Kernels
) -> list[TokenLogprobs | None]:
    targets = row.sequence.tokens[row.start + first + 1 : row.start + first + 1 + len(hidden)]
    chosen = torch.tensor(targets, device=hidden.device)
    return to_host(kernels.logprobs(model.logits(hidden), chosen, wanted), targets, [wanted] * len(targets))
