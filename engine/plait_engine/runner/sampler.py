"""Picks the next tokens of a step's sampling rows, on the device."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from plait_engine.request import TokenLogprobs
from plait_engine.runner.randoms import uniform
from plait_engine.scheduler.step_plan import Row
from plait_engine.sequence import Sequence
from plait_kernels.sampling import GREEDY_BELOW, Entries, Logprobs, Penalties, SamplingTensors
from plait_kernels.select import Kernels


@dataclass(frozen=True)
class Draw:
    """Token ids int64 ``[rows]`` and, where any row wants them, log-probabilities; still on the device."""

    token_ids: Tensor
    logprobs: Logprobs | None


def needs_history(sequence: Sequence) -> bool:
    """Whether its next token depends on earlier ones in ways that only the host knows."""
    s = sequence.request.sampling
    return bool(s.presence_penalty or s.frequency_penalty or s.repetition_penalty != 1.0 or s.min_tokens)


class Sampler:
    def __init__(self, kernels: Kernels, device: torch.device, eos_token_ids: Iterable[int]) -> None:
        self.kernels = kernels
        self.device = device
        self._eos = tuple(eos_token_ids)

    def draw(self, logits: Tensor, rows: tuple[Row, ...]) -> Draw:
        """fp32 ``logits [rows, vocab]`` to one token a row."""
        sequences = [row.sequence for row in rows]
        shaped = self.kernels.penalise(logits, self._penalties(sequences))
        token_ids = self.kernels.sample(shaped, self._tensors(rows))
        wanted = [s.request.sampling.logprobs for s in sequences if s.request.sampling.logprobs is not None]
        logprobs = self.kernels.logprobs(logits, token_ids, max(wanted)) if wanted else None
        return Draw(token_ids, logprobs)

    def _tensors(self, rows: tuple[Row, ...]) -> SamplingTensors:
        params = [row.sequence.request.sampling for row in rows]
        greedy = all(p.temperature < GREEDY_BELOW for p in params)
        numbers = [0.0 if greedy else uniform(row.sequence.seed, row.sequence.index, row.end) for row in rows]
        return SamplingTensors(
            temperature=self._tensor([p.temperature for p in params], torch.float32),
            top_k=self._tensor([p.top_k for p in params], torch.int64),
            top_p=self._tensor([p.top_p for p in params], torch.float32),
            min_p=self._tensor([p.min_p for p in params], torch.float32),
            uniform=self._tensor(numbers, torch.float64),
            all_greedy=greedy,
            unlimited=all(p.top_k == 0 and p.top_p == 1.0 and p.min_p == 0.0 for p in params),
        )

    def _penalties(self, sequences: list[Sequence]) -> Penalties:
        if not any(needs_history(s) or s.request.sampling.logit_bias for s in sequences):
            return Penalties()
        repeated: list[tuple[int, int, float]] = []
        added: list[tuple[int, int, float]] = []
        banned: list[tuple[int, int, float]] = []
        for row, sequence in enumerate(sequences):
            params = sequence.request.sampling
            output = sequence.tokens[sequence.prompt_length :]
            if params.repetition_penalty != 1.0:
                repeated.extend((row, token, params.repetition_penalty) for token in set(sequence.tokens))
            if params.presence_penalty or params.frequency_penalty:
                tokens, counts = np.unique(np.array(output, np.int64), return_counts=True)
                values = -params.presence_penalty - params.frequency_penalty * counts
                added.extend((row, int(token), float(value)) for token, value in zip(tokens, values, strict=True))
            added.extend((row, token, bias) for token, bias in params.logit_bias.items())
            if len(output) < params.min_tokens:
                banned.extend((row, token, 0.0) for token in {*self._eos, *params.stop_token_ids})
        return Penalties(self._entries(repeated), self._entries(added), self._entries(banned))

    def _entries(self, entries: list[tuple[int, int, float]]) -> Entries | None:
        if not entries:
            return None
        rows, tokens, values = zip(*entries, strict=True)
        return Entries(
            self._tensor(rows, torch.int64), self._tensor(tokens, torch.int64), self._tensor(values, torch.float32)
        )

    def _tensor(self, values: Iterable[float], dtype: torch.dtype) -> Tensor:
        return torch.tensor(list(values), dtype=dtype).to(self.device, non_blocking=True)


def to_host(logprobs: Logprobs, token_ids: list[int], wanted: list[int | None]) -> list[TokenLogprobs | None]:
    """One entry a row; ``wanted`` is how many alternatives each row asked for, None for no log-probabilities."""
    chosen, ranks = logprobs.chosen.tolist(), logprobs.ranks.tolist()
    top_ids, top = logprobs.top_ids.tolist(), logprobs.top.tolist()
    return [
        None
        if k is None
        else TokenLogprobs(token, chosen[i], ranks[i], tuple(zip(top_ids[i][:k], top[i][:k], strict=True)))
        for i, (token, k) in enumerate(zip(token_ids, wanted, strict=True))
    ]
