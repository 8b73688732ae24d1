"""Log-probabilities of prompt tokens, collected chunk by chunk."""

from dataclasses import dataclass

import torch
from torch import Tensor

from plait_engine.models.base import Model
from plait_engine.runner.builder import BuiltBatch
from plait_engine.runner.download import Download
from plait_engine.runner.sampler import to_host
from plait_engine.scheduler.step_plan import Row, StepPlan
from plait_kernels.sampling import Logprobs
from plait_kernels.select import Kernels

HEAD_SLICE = 256
"""Rows of the LM head at a time: a long prompt's logits are never there all at once."""


@dataclass(frozen=True)
class PromptScores:
    """What the logits at ``first`` and behind it say of the next prompt tokens; on its way to the host."""

    row: Row
    first: int
    targets: list[int]
    wanted: int
    logprobs: Logprobs

    def keep(self) -> None:
        """Once they are there: to their place in the sequence. A prompt may be scored again from 0 on."""
        scores = self.row.sequence.prompt_logprobs
        scores[self.first :] = to_host(self.logprobs, self.targets, [self.wanted] * len(self.targets))


def score_prompts(
    plan: StepPlan, built: BuiltBatch, hidden: Tensor, model: Model, kernels: Kernels, download: Download
) -> list[PromptScores]:
    """For each row whose request wants them and has not had them: the logits at position p score the token at p + 1."""
    segments = built.batch.segments
    pads = segments.decodes - plan.decodes
    scores = []
    for place, row in enumerate(plan.rows):
        sequence, wanted = row.sequence, row.sequence.request.sampling.prompt_logprobs
        if wanted is None or sequence.announced:
            continue
        begin = segments.starts_host[place if place < plan.decodes else place + pads]
        for first in range(row.start, min(row.end, sequence.prompt_length - 1), HEAD_SLICE):
            end = min(first + HEAD_SLICE, row.end, sequence.prompt_length - 1)
            piece = hidden[begin + first - row.start : begin + end - row.start]
            targets = sequence.tokens[first + 1 : end + 1]
            chosen = torch.tensor(targets, device=hidden.device)
            logprobs = download.bring_logprobs(kernels.logprobs(model.logits(piece), chosen, wanted))
            scores.append(PromptScores(row, first, targets, wanted, logprobs))
    return scores
