"""What a step needs at most beside weights and state: found by running the largest steps on the meta device."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from plait_engine.models.base import Model, bind_states
from plait_engine.runner.batch import SlotTable, StepBatch
from plait_engine.state.arena import Arena
from plait_engine.state.pools import choose_slab_bytes
from plait_engine.state.spec import StateGroup
from plait_kernels.sampling import SamplingTensors
from plait_kernels.segments import Chunk, Segments
from plait_kernels.select import Kernels
from plait_kernels.storage import Pages

MARGIN = 1.05
"""On top of what the largest steps need: small index tensors, and kernels' own scratch."""


class PeakBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While active, follows the bytes of all tensors that operations create, on any device."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = 0
        self._live: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inputs = {t.untyped_storage()._cdata for t in tree_iter((args, kwargs)) if isinstance(t, Tensor)}
        out = func(*args, **(kwargs or {}))
        self._live = {key: entry for key, entry in self._live.items() if not entry[0].expired()}  # type: ignore[no-untyped-call]
        for tensor in tree_iter(out):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in self._live and storage._cdata not in inputs:
                    weak = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
                    self._live[storage._cdata] = (weak, storage.nbytes())
        self.peak = max(self.peak, sum(n_bytes for _, n_bytes in self._live.values()))
        return out


def largest_steps(max_batch_tokens: int, max_seqs: int, max_model_len: int) -> Iterator[list[tuple[int, int]]]:
    """Steps, as (start, count) a row, of which one needs most: all budget for one long prompt's end, or all rows."""
    chunk = min(max_batch_tokens, max_model_len)
    yield [(max_model_len - chunk, chunk)]
    each = max(1, min(max_batch_tokens // max_seqs, max_model_len))
    yield [(max_model_len - each, each)] * min(max_seqs, max_batch_tokens)
    if max_batch_tokens > max_seqs > 1:
        rest = min(max_batch_tokens - max_seqs + 1, max_model_len)
        yield [*[(max_model_len - 1, 1)] * (max_seqs - 1), (max_model_len - rest, rest)]


def activation_bytes(
    model: Model, kernels: Kernels, *, max_batch_tokens: int, max_seqs: int, max_model_len: int
) -> int:
    """Bytes to set aside for one step. ``model`` is on the meta device; nothing is computed or allocated."""
    meta = torch.device("meta")
    slab = choose_slab_bytes(model.plan.groups)
    model.bind(bind_states(model.plan, Arena(slab * len(model.plan.groups), meta)))
    peak = 0
    for rows in largest_steps(max_batch_tokens, max_seqs, max_model_len):
        with torch.inference_mode(), PeakBytes() as measured:
            batch = step_batch(rows, model.plan.groups, meta)
            hidden = model(batch)
            logits = model.logits(hidden[batch.logit_rows])
            del hidden
            kernels.sample(logits, _any_sampling(len(rows), meta))
        peak = max(peak, measured.peak)
    return int(peak * MARGIN)


def step_batch(rows: list[tuple[int, int]], groups: tuple[StateGroup, ...], device: torch.device) -> StepBatch:
    """A step of the given shape whose pages and slots are nowhere in particular."""
    starts = np.array([start for start, _ in rows])
    counts = np.array([count for _, count in rows])
    borders = np.concatenate(([0], np.cumsum(counts)))
    decodes = int((counts == 1).sum())
    tokens, ends = int(borders[-1]), starts + counts
    index = torch.zeros(tokens, dtype=torch.int64, device=device)
    segments = Segments(
        decodes=decodes,
        starts=torch.zeros(len(rows) + 1, dtype=torch.int32, device=device),
        lengths=torch.zeros(len(rows), dtype=torch.int32, device=device),
        positions=index,
        sequence_of=index,
        starts_host=tuple(borders.tolist()),
        lengths_host=tuple(ends.tolist()),
        chunks=tuple(Chunk(int(borders[i]), int(borders[i + 1]), i) for i in range(decodes, len(rows))),
    )
    tables: list[Pages | SlotTable] = []
    for group in groups:
        if group.paged:
            width = -(-int(ends.max()) // group.page_size)
            table = torch.zeros(len(rows), width, dtype=torch.int32, device=device)
            tables.append(Pages(table, index, index, group.page_size))
        else:
            tables.append(SlotTable(torch.zeros(len(group.layers), len(rows), dtype=torch.int32, device=device)))
    wanted = torch.zeros(len(rows), dtype=torch.int64, device=device)
    return StepBatch(index, segments, tuple(tables), wanted)


def _any_sampling(rows: int, device: torch.device) -> SamplingTensors:
    """Rows that use everything the sampler can do."""
    real = torch.ones(rows, dtype=torch.float32, device=device)
    whole = torch.ones(rows, dtype=torch.int64, device=device)
    return SamplingTensors(real, whole, real, real, real.double())
