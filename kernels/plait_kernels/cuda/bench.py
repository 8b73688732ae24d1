"""A GPU as a search for configurations sees it: kernels compiled on all cores, calls timed, and an end to it."""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

import torch

from plait_kernels.cuda.compile_ahead import CompileAhead
from plait_kernels.cuda.graph import renew_pool
from plait_kernels.cuda.timing import seconds_each

LEAST_SECONDS, REPEATS = 0.01, 3
"""Of replays that one configuration is judged by."""


class GpuBench:
    """Is over after ``seconds`` without those of compiling, and after ``compiling_seconds`` of these."""

    def __init__(self, seconds: float, compiling_seconds: float) -> None:
        self._end = time.perf_counter() + seconds
        self._compiling_left = compiling_seconds
        self._timed = False

    def seconds_each(self, calls: Sequence[Callable[[], object]], worth_seconds: float) -> float:
        self._timed = True
        return seconds_each(calls, LEAST_SECONDS, REPEATS, worth_seconds=worth_seconds)

    def compile(self, calls: Iterable[Callable[[], object]]) -> None:
        started = time.perf_counter()
        with CompileAhead(ignore_errors=True) as ahead, ahead.instead_of_launching():
            for call in calls:
                with suppress(Exception):
                    call()
        taken = time.perf_counter() - started
        self._end += taken
        self._compiling_left -= taken

    def over(self) -> bool:
        return self._compiling_left < 0 or time.perf_counter() > self._end

    def close(self) -> None:
        """Give back the memory of calls that were timed. Captures that are kept share a pool that never shrinks; these
        were larger than any of them."""
        if self._timed:
            renew_pool()
            torch.cuda.empty_cache()
