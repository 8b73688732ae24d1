"""Compiling what steps would launch before they launch it, many kernels at a time.

Triton compiles a kernel when it is first launched, one after the other, and lets a C compiler make a launcher for each
signature besides. Those compilers leave Python's lock alone, so threads use as many cores as there are.
"""

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import is_dataclass
from typing import Any

import torch
from torch import Tensor
from triton import AsyncCompileMode, knobs
from triton.runtime.jit import JITFunction

ALIGNMENT = 16
"""Bytes, and multiples of integers, that Triton tells apart."""


class CompileAhead(AsyncCompileMode):  # type: ignore[misc]
    """Kernels asked for inside of ``instead_of_launching`` are compiled while the context goes on, and are there when
    it ends: loaded, and with their launchers made. ``threads``: so many at a time, None for one a core. With
    ``ignore_errors`` a kernel that cannot be made is an error of who launches it, else of the context's end."""

    def __init__(self, threads: int | None = None, *, ignore_errors: bool = False) -> None:
        device = torch.cuda.current_device()
        count = threads or len(os.sched_getaffinity(0))
        pool = ThreadPoolExecutor(count, "compile", lambda: torch.cuda.set_device(device))
        super().__init__(pool, ignore_errors=ignore_errors)
        self._seen: set[tuple[Any, ...]] = set()
        self._spent: list[float] = []

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self.executor.shutdown()

    @property
    def kernels(self) -> int:
        return len(self.raw_futures)

    @property
    def seconds(self) -> float:
        """That threads have spent on them, waiting for a core or for Python included."""
        return sum(self._spent)

    @contextmanager
    def instead_of_launching(self) -> Iterator[None]:
        """What is launched inside does not run, so tensors that it would have written hold anything."""
        run = JITFunction.run

        def ask(kernel: Any, *args: Any, grid: Any, **options: Any) -> None:
            options["warmup"] = True
            if self._is_new(kernel, args, options):
                run(kernel, *args, grid=grid, **options)

        JITFunction.run = ask
        try:
            yield
        finally:
            JITFunction.run = run

    def submit(self, key: str, compile_fn: Callable[[], Any], finalize_fn: Callable[[Any], None]) -> Any:
        def loaded() -> Any:
            started = time.perf_counter()
            kernel = compile_fn()
            assert kernel.run is not None  # asking for it makes the launcher and loads the kernel
            self._spent.append(time.perf_counter() - started)
            return kernel

        return super().submit(key, loaded, finalize_fn)

    def _is_new(self, kernel: Any, args: tuple[Any, ...], options: dict[str, Any]) -> bool:
        """Whether Triton may need another kernel than for all earlier launches: cheaper than asking Triton."""
        key = (kernel, *map(_kind, args), *options.items())
        if key in self._seen:
            return False
        self._seen.add(key)
        return True


def tell_of_compiles(tell: Callable[[str], None]) -> None:
    """From now on ``tell`` is given the name and the argument types of each kernel that a launch had to wait for."""

    def hook(*, repr: str, **rest: Any) -> None:
        del rest
        tell(repr)

    knobs.runtime.jit_post_compile_hook = hook


def _kind(value: Any) -> Any:
    """All that Triton may tell apart of an argument by position. Constants come by name, and are compared as they are.

    What two such keys have in common, Triton has in common too; not the other way round.
    """
    if isinstance(value, Tensor):
        return value.dtype, value.data_ptr() % ALIGNMENT
    if isinstance(value, int) and not isinstance(value, bool):
        return value == 1, value % ALIGNMENT, value.bit_length() > 31
    if is_dataclass(value):  # a tensor with the shape of its tiles
        return type(value), *(x.dtype if isinstance(x, Tensor) else repr(x) for x in vars(value).values())
    return type(value) if isinstance(value, float) else value
