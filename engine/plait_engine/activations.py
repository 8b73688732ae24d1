"""What a step needs at most beside weights and state: found by running the largest steps on the meta device."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from plait_engine.models.base import Model, bind_states
from plait_engine.models.causal import CausalModel, Layer
from plait_engine.request import Request, SamplingParams
from plait_engine.runner.rows import RowTables
from plait_engine.runner.runner import ModelRunner
from plait_engine.scheduler.scheduler import SchedulerLimits
from plait_engine.scheduler.step_plan import Row, StepPlan
from plait_engine.sequence import Sequence
from plait_engine.state.arena import Arena
from plait_engine.state.ledger import Units
from plait_engine.state.pools import choose_slab_bytes
from plait_engine.state.sequence_state import SequenceState
from plait_engine.state.spec import Granule, Position, StateGroup
from plait_engine.state.unit_copy import UnitCopier
from plait_kernels.gated_activation import Kind
from plait_kernels.moe.reference import moe
from plait_kernels.paged_attention.reference import paged_attention, query_block
from plait_kernels.segments import Segments
from plait_kernels.select import Kernels
from plait_kernels.storage import Pages

MARGIN = 1.05
"""On top of what the largest steps need: small index tensors, and kernels' own scratch."""


class PeakBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While active, follows the bytes of all tensors that operations create, on any device."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing here is compiled; to forbid it, torch would import its compiler, which takes a second."""
        return False

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = 0
        self._created = 0
        """Bytes of the storages in ``_live``, of which some may be freed by now."""
        self._live: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inputs = {t.untyped_storage()._cdata for t in tree_iter((args, kwargs)) if isinstance(t, Tensor)}
        out = func(*args, **(kwargs or {}))
        for tensor in tree_iter(out):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in self._live and storage._cdata not in inputs:
                    weak = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
                    self._live[storage._cdata] = (weak, storage.nbytes())
                    self._created += storage.nbytes()
        if self._created > self.peak:
            self._live = {key: entry for key, entry in self._live.items() if not entry[0].expired()}  # type: ignore[no-untyped-call]
            self._created = sum(n_bytes for _, n_bytes in self._live.values())
            self.peak = max(self.peak, self._created)
        return out


def largest_steps(limits: SchedulerLimits) -> Iterator[list[tuple[int, int]]]:
    """Steps, as (start, count) a row, of which one needs most: the end of the longest prompt, alone in a step or with
    as many decodes beside it as there can be."""
    length = limits.max_model_len
    for decodes in sorted({0, limits.max_seqs - 1}):
        chunk = min(limits.max_batch_tokens - decodes, length)
        yield [*[(length - 1, 1)] * decodes, (length - chunk, chunk)]


def activation_bytes(model: Model, limits: SchedulerLimits, decode_padding: int) -> int:
    """Bytes to set aside for one step of ``model``, which is on the meta device: nothing is computed or allocated.

    The runner itself runs the largest steps, with everything that a request can ask of it.
    """
    meta, groups = torch.device("meta"), model.plan.groups
    arena = Arena(choose_slab_bytes(groups) * len(groups), meta)
    model.bind(bind_states(model.plan, arena))
    _keep_two_of_each_layer(model)
    nowhere: Units = {group.id: [Granule(0)] * group.units_per_slot for group in groups}
    tables = RowTables(groups, nowhere, limits.max_seqs, limits.max_model_len)
    copier = UnitCopier(arena, groups)
    runner = ModelRunner(
        model, PLANNING_KERNELS, tables, meta, copier=copier, decode_padding=decode_padding, eos_token_ids=[0]
    )
    peak = 0
    for rows in largest_steps(limits):
        plan = _step(rows, groups, nowhere)
        with PeakBytes() as measured:
            runner.launch(plan)
        peak = max(peak, measured.peak)
    return int(peak * MARGIN)


def _keep_two_of_each_layer(model: Model) -> None:
    """Layers alike need alike, and nothing but its result outlives a layer: more of them only take time to run."""
    assert isinstance(model, CausalModel)
    alike: dict[object, list[nn.Module]] = {}
    for layer in model.layers:
        assert isinstance(layer, Layer)
        alike.setdefault((layer.kind, layer.mlp_kind, layer.specs), []).append(layer)
    model.layers = nn.ModuleList(layer for layers in alike.values() for layer in layers[:2])


def _step(rows: list[tuple[int, int]], groups: tuple[StateGroup, ...], nowhere: Units) -> StepPlan:
    """A step of the given shape whose pages and slots are nowhere in particular."""
    everything = SamplingParams(top_k=1, top_p=0.5, min_p=0.1, min_tokens=1, logprobs=1, prompt_logprobs=1)
    request = Request(id="", prompt=(0,) * max(start + count for start, count in rows), sampling=everything)
    tokens = list(request.prompt)
    planned = []
    for i, (start, count) in enumerate(rows):
        state = SequenceState(groups)
        state.slots = {group.id: nowhere[group.id] for group in groups if not group.paged}
        sequence = Sequence(request, 0, i, state, tokens, row=i)
        planned.append(Row(sequence, Position(start), count, samples=True))
    planned.sort(key=lambda row: row.count > 1)
    return StepPlan(tuple(planned))


def _crowded_moe(
    x: Tensor, expert_ids: Tensor, expert_weights: Tensor, gate_up: Tensor, down: Tensor, *, activation: Kind
) -> Tensor:
    """All tokens choose the same experts: that takes most, and what a tensor on the meta device holds is not known."""
    ids = torch.arange(expert_ids.shape[1]).expand(expert_ids.shape)
    return moe(x, ids, expert_weights, gate_up, down, activation=activation)


def _longest_attention(
    q: Tensor, k: Tensor, v: Tensor, k_view: Tensor, v_view: Tensor, pages: Pages, segments: Segments, **rule: Any
) -> Tensor:
    """Queries are scored block by block: a block of the last row, which sees most, stands for all of them."""
    out = q.new_empty(*q.shape[:2], v.shape[-1])
    begin, end = segments.starts_host[-2:]
    n = min(end - begin, query_block(q.shape[1], segments.lengths_host[-1]))
    last = Pages(pages.table[-1:], pages.write_pages[-n:], pages.write_offsets[-n:], pages.page_size)
    block = replace(segments, starts_host=(0, n), lengths_host=segments.lengths_host[-1:])
    paged_attention(q[-n:], k[-n:], v[-n:], k_view, v_view, last, block, **rule)
    return out


PLANNING_KERNELS = Kernels(moe=_crowded_moe, paged_attention=_longest_attention)
"""The references: they run on the meta device, and no other implementation needs more."""
