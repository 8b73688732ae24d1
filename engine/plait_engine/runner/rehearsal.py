"""Steps of every kind that the compiler tells apart, gone through without waiting for what they compute.

Inside of ``compiling_ahead`` each of their launches compiles a kernel, and nothing else happens. What the compiler is
told of a step is which way it goes (recorded or not; with decodes, pieces of prompts, checkpoints, a history that is
long enough to be split), sizes up to the next power of two where a block or a table of configurations has it so, and
how it samples. ``tests/engine/runner/test_rehearsal.py`` drives engines with random loads: none may ask for a kernel
that was not asked for here.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from torch import nn

from plait_engine.models.base import Model
from plait_engine.models.causal import CausalModel, Layer
from plait_engine.request import SamplingParams
from plait_engine.runner.padding_rows import GREEDY, PaddingRows
from plait_engine.runner.runner import ModelRunner
from plait_engine.runner.shape import ladder, up
from plait_engine.scheduler.scheduler import SchedulerLimits
from plait_engine.scheduler.step_plan import Row, StepPlan
from plait_kernels.recording import Recording
from plait_kernels.select import Kernels

T = TypeVar("T")

SAMPLINGS = (
    GREEDY,
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=1.0, top_k=5, top_p=0.9, min_p=0.01, logprobs=1, prompt_logprobs=1),
)
SIDE_BY_SIDE = ((3, 16), (8, 64), (8, 1024), (16, 512))
"""Prompts in one step, and tokens of each."""
SCORED = (2, 18, 40, 80)
"""Tokens of prompts whose log-probabilities are wanted: as many rows of logits but one."""


def rehearse(runner: ModelRunner, rows: PaddingRows, limits: SchedulerLimits) -> int:
    """How many steps were gone through."""
    graphs, done = runner.graphs, 0
    pieces = graphs.piece_tokens
    with _unrecorded(runner), _few_layers(runner.model):
        for plan in _plans(rows, limits):
            # The largest first: the tensors that recordings read are made for it.
            for graphs.piece_tokens in sorted({0, pieces}, reverse=True):
                if graphs.piece_tokens == 0 or graphs.shape(plan) is not None:
                    runner.launch(plan).wait()
                    done += 1
    return done


def decode_sizes(limits: SchedulerLimits, multiple: int) -> list[int]:
    """Rows that steps of decodes alone are padded to."""
    return sorted({up(ladder(rows), multiple) for rows in range(1, limits.max_seqs + 1)})


def _plans(rows: PaddingRows, limits: SchedulerLimits) -> Iterator[StepPlan]:
    """The slowest to compile come first."""
    longest, budget = limits.max_model_len - 1, limits.max_batch_tokens
    sizes = [min(size, longest, budget) for size in _powers(budget)]
    for emits in (False, True):
        for tokens in sorted(set(sizes), reverse=True):
            yield _plan(rows.row(tokens, emits=emits))
            yield _plan(rows.row(tokens, emits=emits, start=longest - tokens))
    # Forced tokens make pieces of decodes: as many as sequences, which may be more tiles than long prompts have.
    crowd = (min(limits.max_seqs, budget // 2), 2)
    for sequences, tokens in (*SIDE_BY_SIDE, crowd):
        sequences = min(sequences, limits.max_seqs)
        tokens = min(tokens, longest, budget // sequences)
        for emits in (False, True):
            if tokens > 1:
                yield _plan(*(rows.row(tokens, emits=emits) for _ in range(sequences)))
    for sampling in SAMPLINGS:
        for tokens in SCORED:
            yield _plan(rows.row(min(tokens, longest, budget), sampling))
    most = min(limits.max_seqs, budget - 2)
    for decodes in sorted({min(n, most) for size in _powers(most) for n in (size // 2 + 1, size)}):
        others = [rows.row(1) for _ in range(decodes - 1)]
        yield _plan(rows.row(1), *others)
        for start in (0, longest - 1):
            yield _plan(rows.row(1, start=start), *others, rows.row(2))


def _powers(most: int) -> list[int]:
    """Of two, up to one that is no less than ``most``."""
    return [1 << i for i in range(1 + max(0, most - 1).bit_length())]


def _plan(*rows: Row) -> StepPlan:
    return StepPlan(rows)


@contextmanager
def _unrecorded(runner: ModelRunner) -> Iterator[None]:
    """Steps that would be recorded run as the recording would see them, and are forgotten."""
    graphs = runner.graphs
    before = graphs.kernels, graphs.piece_tokens
    graphs.kernels = _NothingKept()
    try:
        yield
    finally:
        graphs.kernels, graphs.piece_tokens = before
        graphs.forget()


@contextmanager
def _few_layers(model: Model) -> Iterator[None]:
    """Two layers of each kind ask for all that the others do; two, because the first of a model is not normed as those
    behind another one are."""
    assert isinstance(model, CausalModel)
    layers, kinds = model.layers, Counter[Hashable]()
    few = []
    for layer in layers:
        assert isinstance(layer, Layer)
        kind = (layer.kind, layer.mlp_kind, *((name, x.shape, x.dtype) for name, x in layer.named_parameters()))
        kinds[kind] += 1
        if kinds[kind] <= 2:
            few.append(layer)
    model.layers = nn.ModuleList(few)
    try:
        yield
    finally:
        model.layers = layers


class _NothingKept(Kernels):
    """In the place of what records steps."""

    def record(self, step: Callable[[], T], *, known: bool = False) -> Recording[T]:
        del known
        return Recording(step(), lambda: None)
