"""A step captured as a CUDA graph: all its kernels with one launch."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import TypeVar

import torch

from plait_kernels.recording import NotReplayableError, Recording

T = TypeVar("T")

MODE = "relaxed"
"""Kernels may be loaded for the first time while a step is captured: that is no part of the step."""


def capture(step: Callable[[], T], *, known: bool = False) -> Recording[T]:
    """Capture ``step`` without running it, which takes the host as long as launching it would.

    Unless a step like it is ``known`` to have run, it is run once as it is first, so that its kernels are loaded and
    its libraries set up; so is one that cannot be captured at once. All captures share one pool of memory, so what is
    in between belongs to whichever graph runs: graphs must run one after another, on one stream, and a result must be
    used before another graph runs. Raises ``NotReplayableError`` where the step waits for the device, which a graph
    cannot.
    """
    outside = torch.cuda.current_stream()
    with torch.cuda.stream(_stream()):
        if known:
            try:
                return _captured(step)
            except NotReplayableError:
                pass  # a library that was not set up yet, perhaps
        _stream().wait_stream(outside)
        step()
        _stream().synchronize()
        return _captured(step)


def _captured(step: Callable[[], T]) -> Recording[T]:
    with _no_garbage_collection():
        return _recorded(step)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """What is found to be garbage in mid-capture may ask the device for what a capture does not allow."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _recorded(step: Callable[[], T]) -> Recording[T]:
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin(pool=_pool().handle, capture_error_mode=MODE)
    try:
        result = step()
    except RuntimeError as error:
        _abandon(graph)
        raise NotReplayableError(f"the step cannot be captured: {error}") from error
    except BaseException:
        _abandon(graph)
        raise
    graph.capture_end()
    return Recording(result, graph.replay)


def _abandon(graph: torch.cuda.CUDAGraph) -> None:
    """End a capture that failed.

    Where that fails too, PyTorch's two allocators go on lending memory of the pool to this graph alone, and no other
    capture may use it; nor do random numbers work before another capture has ended well, as that of a new pool does.
    """
    try:
        graph.capture_end()
    except RuntimeError:
        _abandoned.append(graph)
        torch.cuda.synchronize()
        with suppress(RuntimeError):
            torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), _pool().handle)
        renew_pool()
        _pool()


_abandoned: list[torch.cuda.CUDAGraph] = []
"""Kept, because the allocators go on asking whether memory is for one of them."""


def renew_pool() -> None:
    """The next capture begins another pool. The one before ends with the last graph that uses it."""
    _pool.cache_clear()


@cache
def _stream() -> torch.cuda.Stream:
    """Captures have a stream of their own: the default one cannot be captured."""
    return torch.cuda.Stream()  # type: ignore[no-untyped-call]


@cache
def _pool() -> "_Pool":
    return _Pool()


class _Pool:
    """Memory that all captures share. A pool ends with the last graph that uses it, its handle for good with it; so one
    graph, of nothing much, stays for as long as the process lives."""

    def __init__(self) -> None:
        self.handle = torch.cuda.graph_pool_handle()
        self._first = torch.cuda.CUDAGraph()
        self._first.capture_begin(pool=self.handle, capture_error_mode=MODE)
        self._result = torch.zeros(1, device="cuda")
        self._first.capture_end()
