"""The sampler in C++: no sort of the vocabulary, only of what can be kept."""

import torch
from torch import Tensor

from plait_kernels.cpu.library import Library
from plait_kernels.sampling import GREEDY_BELOW, ComputeLogprobs, Logprobs, Sample, SamplingTensors, reference


def _plain(logits: Tensor) -> bool:
    return logits.dtype == torch.float32 and logits.stride(-1) == 1


def cpu_sample(library: Library) -> Sample:
    sample_rows, argmax_rows = library.op("sample", "10qd"), library.op("argmax", "10qd")

    def sample(logits: Tensor, params: SamplingTensors) -> Tensor:
        numbers = (params.temperature, params.top_p, params.min_p)
        fits = (
            _plain(logits)
            and all(u.dtype == torch.float32 and u.is_contiguous() for u in numbers)
            and params.top_k.dtype == torch.int64
            and params.uniform.dtype == torch.float64
            and params.top_k.is_contiguous()
            and params.uniform.is_contiguous()
        )
        if not fits:
            return reference.sample(logits, params)
        tokens = torch.empty(logits.shape[0], dtype=torch.int64)
        call = argmax_rows if params.all_greedy else sample_rows
        call(
            *logits.shape,
            logits.data_ptr(),
            logits.stride(0),
            params.temperature.data_ptr(),
            params.top_k.data_ptr(),
            params.top_p.data_ptr(),
            params.min_p.data_ptr(),
            params.uniform.data_ptr(),
            tokens.data_ptr(),
            GREEDY_BELOW,
        )
        return tokens

    return sample


def cpu_logprobs(library: Library) -> ComputeLogprobs:
    call = library.op("logprobs", "10q")

    def logprobs(logits: Tensor, chosen: Tensor, k: int) -> Logprobs:
        if not _plain(logits) or chosen.dtype != torch.int64 or not chosen.is_contiguous():
            return reference.logprobs(logits, chosen, k)
        rows, vocabulary = logits.shape
        k = min(k, vocabulary)
        out = Logprobs(
            chosen=torch.empty(rows),
            ranks=torch.empty(rows, dtype=torch.int64),
            top_ids=torch.empty((rows, k), dtype=torch.int64),
            top=torch.empty((rows, k)),
        )
        call(
            rows,
            vocabulary,
            k,
            logits.data_ptr(),
            logits.stride(0),
            chosen.data_ptr(),
            out.chosen.data_ptr(),
            out.ranks.data_ptr(),
            out.top_ids.data_ptr(),
            out.top.data_ptr(),
        )
        return out

    return logprobs
