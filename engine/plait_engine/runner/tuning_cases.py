"""What a model's kernels are tuned with: calls of its ops, out of steps that run as they would for requests."""

from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

from torch import Tensor

from plait_engine.runner.own_rows import OwnRows
from plait_engine.runner.rehearsal import decode_sizes
from plait_engine.runner.runner import ModelRunner
from plait_engine.runner.shape import ladder, up
from plait_engine.scheduler.scheduler import SchedulerLimits
from plait_engine.scheduler.step_plan import StepPlan
from plait_engine.state.ledger import Ledger
from plait_kernels.select import OPS, Kernels
from plait_kernels.tuning import Ask, asking, bucket
from plait_kernels.tuning.op_call import OpCall

HISTORY = 1024
"""Tokens that decodes have behind them, where memory holds as many."""
LEAST_PROMPT = 256
TURNS = 16
"""Calls of decodes that are timed in turn: those of as many layers, since their weights and states are not in a cache
either when the next step asks for them. Calls of prompts move more than a cache holds."""


@dataclass
class Case:
    """Calls of an op, in one step, that ask for one kernel and shape."""

    ask: Ask
    step: int
    calls: list[OpCall] = field(default_factory=list)
    times: int = 0
    """How many there were; not all are kept."""


class _Collection:
    """Takes calls while a step runs: kept are no more than are wanted, since their inputs stay in memory."""

    def __init__(self, wanted: Container[Ask]) -> None:
        self.cases: dict[Ask, Case] = {}
        self.step, self.most = 0, 0
        self._wanted = wanted

    def take(self, call: OpCall, asks: Iterable[Ask]) -> None:
        for ask in asks:
            if ask in self._wanted:
                case = self.cases.setdefault(ask, Case(ask, self.step))
                if case.step == self.step:
                    case.times += 1
                    case.calls += [call] * (len(case.calls) < self.most)


def cases_of(runner: ModelRunner, ledger: Ledger, limits: SchedulerLimits, wanted: Container[Ask]) -> list[Case]:
    """Of what is ``wanted``, all that steps of decodes, or of one prompt, ask for: where several steps do, the largest.

    Weights must be there, and nothing running.
    """
    rows, longest, collection = OwnRows(runner, ledger), limits.max_model_len - 1, _Collection(wanted)
    decodes = [(number, min(HISTORY, longest), 1) for number in _decodes(runner, limits)]
    prompts = [(1, 0, count) for count in _prompts(min(limits.max_batch_tokens, longest))]
    for step, (number, start, count) in enumerate(decodes + prompts):
        collection.step, collection.most = step, TURNS if count == 1 else 1
        with rows.rows(number, start, count) as own, _watched(runner, collection.take):
            if own:
                runner.launch(StepPlan(tuple(own))).wait()
    return list(collection.cases.values())


def _decodes(runner: ModelRunner, limits: SchedulerLimits) -> list[int]:
    """The largest number between two powers of two that is not padded: rows of padding would all write one slot."""
    multiple = runner.builder.padding
    sizes = [n for n in decode_sizes(limits, multiple) if n <= limits.max_seqs and up(ladder(n), multiple) == n]
    return sorted({bucket(n): n for n in sizes}.values(), reverse=True)


def _prompts(most: int) -> list[int]:
    """``most``, and the powers of two below it."""
    powers = (1 << i for i in range(most.bit_length()))
    return sorted({most, *(power for power in powers if LEAST_PROMPT <= power < most)}, reverse=True)


@contextmanager
def _watched(runner: ModelRunner, take: Callable[[OpCall, Iterable[Ask]], None]) -> Iterator[None]:
    """Steps run as they are, none is recorded, and ``take`` is given each call of an op and what it asks for."""
    kernels, graphs = runner.kernels, runner.graphs
    ops = {name: getattr(kernels, name) for name in OPS}
    for name, op in ops.items():
        setattr(kernels, name, _telling(op, take))
    graphs.kernels = Kernels()  # which record nothing
    try:
        yield
    finally:
        graphs.kernels = kernels
        graphs.forget()
        for name, op in ops.items():
            setattr(kernels, name, op)


def _telling(op: Callable[..., Any], take: Callable[[OpCall, Iterable[Ask]], None]) -> Callable[..., Any]:
    @wraps(op)
    def call(*args: Any, **options: Any) -> Any:
        with asking() as asks:
            result = op(*args, **options)
        if asks and isinstance(result, Tensor):
            take(OpCall(op, args, options), asks)
        return result

    return call
