"""A step as a list of calls that can be made again without Python in between.

A small model's decode step is a hundred calls of a few microseconds of work each, and Python between them costs as much
again. Where the same step comes back (a decode of the same number of sequences, its inputs in the same tensors), its
calls are recorded once and replayed: compiled ops as one call for all of them, PyTorch's own ops one by one.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from plait_kernels.cpu.library import Library
from plait_kernels.recording import NotReplayableError, Recording

T = TypeVar("T")


def record(library: Library, step: Callable[[], T]) -> Recording[T]:
    """Run ``step`` once and keep its calls.

    What it may depend on: contents of tensors that exist before and stay where they are. Numbers that Python read off
    them or off their shapes are part of the recording. Raises ``NotReplayableError`` where the step reads a value off
    a tensor that it computed or was given.
    """
    tape = _Tape()
    library.listen(tape.add_call)
    try:
        with _NoReading(), tape:
            result = step()
    finally:
        library.listen(None)
    return Recording(result, tape.sealed(library))


READS = frozenset(
    getattr(Tensor, name)
    for name in ("tolist", "item", "numpy", "__bool__", "__int__", "__float__", "__index__", "__array__")
) | {Tensor.nonzero, Tensor.unique, Tensor.masked_select, torch.nonzero, torch.unique, torch.masked_select}
"""What brings values of a tensor to Python, or gives a shape that depends on them. ``tolist`` is no operator and passes
by every dispatcher, so it must be caught here."""


class _NoReading(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in READS:
            raise NotReplayableError(f"the step reads values: {getattr(func, '__name__', func)}")
        return func(*args, **(kwargs or {}))


class _Tape(TorchDispatchMode):  # type: ignore[no-untyped-call]
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing here is compiled; to forbid it, torch would import its compiler, which takes a second."""
        return False

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._steps: list[Callable[[], None] | tuple[int, bytes]] = []
        self._kept: list[Any] = []

    def add_call(self, address: int, arguments: bytes) -> None:
        self._steps.append((address, arguments))

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        # Memory that compiled ops were given must stay theirs.
        self._kept.append(result)
        if func.namespace != "aten" or func._schema.name in ("aten::_local_scalar_dense", "aten::item"):
            raise NotReplayableError(f"the step calls {func}")
        if func._schema.is_mutable or not (_allocates(func) or _is_view(result, (args, kwargs))):
            self._steps.append(_again(func, args, kwargs, result))
        return result

    def sealed(self, library: Library) -> Callable[[], None]:
        steps: list[Callable[[], None]] = []
        calls: list[tuple[int, bytes]] = []
        for step in [*self._steps, None]:
            if isinstance(step, tuple):
                calls.append(step)
                continue
            if calls:
                steps.append(library.replay(calls))
                calls = []
            if step is not None:
                steps.append(step)
        kept = self._kept

        def run() -> None:
            assert kept is not None  # the recording owns its buffers
            with torch.inference_mode():
                for step in steps:
                    step()

        return run


def _allocates(func: Any) -> bool:
    return func._schema.name in ("aten::empty", "aten::empty_strided", "aten::empty_like", "aten::new_empty")


def _is_view(result: Any, inputs: Any) -> bool:
    """Whether nothing was computed. Schemas do not tell: ``aten::to`` gives its input back, or a copy."""
    storages = {t.untyped_storage()._cdata for t in tree_iter(inputs) if isinstance(t, Tensor)}
    results = [t for t in tree_iter(result) if isinstance(t, Tensor)]
    return bool(results) and all(t.untyped_storage()._cdata in storages for t in results)


def _again(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Callable[[], None]:
    """The same op on the same tensors, its results put where they were the first time."""
    if func._schema.is_mutable:
        return lambda: func(*args, **kwargs)
    alone = isinstance(result, Tensor)
    results = (result,) if alone else result
    if not isinstance(results, tuple | list) or not all(isinstance(part, Tensor) for part in results):
        raise NotReplayableError(f"the step calls {func}")

    def again() -> None:
        fresh = func(*args, **kwargs)
        for old, new in zip(results, (fresh,) if alone else fresh, strict=True):
            old.copy_(new)

    return again
