"""Picks the next tokens of a step's sampling rows, on the device."""

from collections.abc import Iterable
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from plait_engine.request import TokenLogprobs
from plait_engine.runner.grammars import Grammars
from plait_engine.runner.history import History
from plait_engine.runner.masks import masked
from plait_engine.runner.randoms import uniform
from plait_engine.runner.upload import Upload
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
    if sequence.request.grammar is not None:
        return True
    s = sequence.request.sampling
    return bool(s.presence_penalty or s.frequency_penalty or s.repetition_penalty != 1.0 or s.min_tokens)


class Sampler:
    def __init__(self, kernels: Kernels, upload: Upload, eos_token_ids: Iterable[int], grammars: Grammars) -> None:
        self.kernels = kernels
        self.upload = upload
        self.grammars = grammars
        self._eos = tuple(eos_token_ids)
        self._greedy: dict[int, SamplingTensors] = {}
        """By number of rows. Where all are greedy nothing else matters, so nothing needs to be sent."""
        self._histories: WeakKeyDictionary[Sequence, History] = WeakKeyDictionary()

    def draw(self, logits: Tensor, rows: tuple[Row, ...]) -> Draw:
        """fp32 ``logits [rows, vocab]`` to one token a row."""
        sequences = [row.sequence for row in rows]
        shaped = self.kernels.penalise(logits, self._penalties(sequences))
        if (masks := self.grammars.masks(sequences, self.upload.device)) is not None:
            shaped = masked(shaped, logits, masks)
        token_ids = self.kernels.sample(shaped, self._tensors(rows))
        wanted = [s.request.sampling.logprobs for s in sequences if s.request.sampling.logprobs is not None]
        logprobs = self.kernels.logprobs(logits, token_ids, max(wanted)) if wanted else None
        return Draw(token_ids, logprobs)

    def _tensors(self, rows: tuple[Row, ...]) -> SamplingTensors:
        params = [row.sequence.request.sampling for row in rows]
        greedy = all(p.temperature < GREEDY_BELOW for p in params)
        if greedy:
            if len(rows) not in self._greedy:
                self._greedy[len(rows)] = _all_greedy(len(rows), self.upload.device)
            return self._greedy[len(rows)]
        numbers = [uniform(row.sequence.seed, row.sequence.index, row.end) for row in rows]
        put = self.upload.put
        tensors = SamplingTensors(
            temperature=put(np.array([p.temperature for p in params], np.float32)),
            top_k=put(np.array([p.top_k for p in params], np.int64)),
            top_p=put(np.array([p.top_p for p in params], np.float32)),
            min_p=put(np.array([p.min_p for p in params], np.float32)),
            uniform=put(np.array(numbers, np.float64)),
            unlimited=all(p.top_k == 0 and p.top_p == 1.0 and p.min_p == 0.0 for p in params),
        )
        self.upload.send()
        return tensors

    def _penalties(self, sequences: list[Sequence]) -> Penalties:
        if not any(needs_history(s) or s.request.sampling.logit_bias for s in sequences):
            return Penalties()
        repeated, added, banned = _Collected(), _Collected(), _Collected()
        for row, sequence in enumerate(sequences):
            params = sequence.request.sampling
            if params.repetition_penalty != 1.0 or params.presence_penalty or params.frequency_penalty:
                history = self._histories.setdefault(sequence, History())
                history.follow(sequence)
                if params.repetition_penalty != 1.0:
                    repeated.add(row, history.tokens, params.repetition_penalty)
                generated = history.counts > 0
                counts = history.counts[generated]
                added.add(row, history.tokens[generated], -params.presence_penalty - params.frequency_penalty * counts)
            if params.logit_bias:
                added.add(row, list(params.logit_bias), list(params.logit_bias.values()))
            if len(sequence.tokens) - sequence.prompt_length < params.min_tokens:
                banned.add(row, [*self._eos, *params.stop_token_ids], 0.0)
        entries = [part.entries(self.upload) for part in (repeated, added, banned)]
        self.upload.send()
        return Penalties(*entries)


def _all_greedy(rows: int, device: torch.device) -> SamplingTensors:
    zeros, ones = torch.zeros(rows, device=device), torch.ones(rows, device=device)
    return SamplingTensors(zeros, zeros.long(), ones, zeros, zeros.double(), all_greedy=True, unlimited=True)


class _Collected:
    """Entries of many rows, put together once."""

    def __init__(self) -> None:
        self._parts: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]] = []

    def add(self, row: int, tokens: ArrayLike, values: ArrayLike) -> None:
        ids = np.asarray(tokens, np.int64)
        self._parts.append((np.full(len(ids), row), ids, np.broadcast_to(np.asarray(values, np.float32), ids.shape)))

    def entries(self, upload: Upload) -> Entries | None:
        arrays = [np.concatenate(part) for part in zip(*self._parts, strict=True)]
        if not arrays or not len(arrays[0]):
            return None
        return Entries(*map(upload.put, arrays))


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
