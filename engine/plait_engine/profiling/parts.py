"""Time by kernel op and by kind of layer, with the step run op by op."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from plait_engine.models.causal import CausalModel, Layer
from plait_engine.runner.runner import ModelRunner
from plait_kernels.select import OPS

Mark = Any
"""A moment: seconds on a CPU, an event on a GPU."""


@dataclass
class Parts:
    """Collects spans while ``measuring``; ``seconds`` afterwards sums them by name.

    On a GPU a span is what lies between two events of the stream: the op's kernels, and gaps where the host was slower.
    """

    device: torch.device
    _spans: dict[str, list[tuple[Mark, Mark]]] = field(default_factory=lambda: defaultdict(list))

    def timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def inside(*args: Any, **kwargs: Any) -> Any:
            begin = self._mark()
            result = call(*args, **kwargs)
            self._spans[name].append((begin, self._mark()))
            return result

        return inside

    def seconds(self) -> dict[str, tuple[float, int]]:
        """By name: seconds and calls."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return {name: (sum(self._between(*s) for s in spans), len(spans)) for name, spans in self._spans.items()}

    def _mark(self) -> Mark:
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    @staticmethod
    def _between(begin: Mark, end: Mark) -> float:
        return end - begin if isinstance(begin, float) else float(begin.elapsed_time(end)) / 1e3


@contextmanager
def measuring(runner: ModelRunner) -> Iterator[Parts]:
    """Steps run without recordings, each op and layer timed."""
    parts, model = Parts(runner.device), runner.model
    assert isinstance(model, CausalModel)
    owners = {id(kernels): kernels for kernels in (runner.kernels, model.build.kernels)}.values()
    ops = [(kernels, name, getattr(kernels, name)) for kernels in owners for name in OPS]
    for kernels, name, op in ops:
        setattr(kernels, name, parts.timed(f"op {name}", op))
    layers = [layer for layer in model.layers if isinstance(layer, Layer)]
    for layer in layers:
        layer.forward = parts.timed(f"layer {layer.kind}", layer.forward)  # type: ignore[method-assign]
    shape = runner.graphs.shape
    runner.graphs.shape = lambda plan: None  # type: ignore[method-assign]  # noqa: ARG005
    try:
        yield parts
    finally:
        runner.graphs.shape = shape  # type: ignore[method-assign]
        for layer in layers:
            del layer.forward
        for kernels, name, op in ops:
            setattr(kernels, name, op)
