"""A step captured as a CUDA graph: all its kernels with one launch."""

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import torch

from plait_kernels.recording import NotReplayableError, Recording

T = TypeVar("T")


def capture(step: Callable[[], T]) -> Recording[T]:
    """Run ``step`` once as it is, so that its kernels are compiled and its libraries set up, then capture it.

    All captures share one pool of memory, so what is in between belongs to whichever graph runs: graphs must run one
    after another, on one stream, and a result must be used before another graph runs. Raises ``NotReplayableError``
    where the step waits for the device, which a graph cannot.
    """
    stream = _stream()
    stream.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        step()
        stream.synchronize()
        graph.capture_begin(pool=_pool(), capture_error_mode="thread_local")
        try:
            result = step()
        except RuntimeError as error:
            _abandon(graph)
            raise NotReplayableError(f"the step cannot be captured: {error}") from error
        except BaseException:
            _abandon(graph)
            raise
        graph.capture_end()
    torch.cuda.current_stream().wait_stream(stream)
    return Recording(result, graph.replay)


def _abandon(graph: torch.cuda.CUDAGraph) -> None:
    """End a capture that failed; ending it fails too, and says nothing new."""
    try:
        graph.capture_end()
    except RuntimeError:
        torch.cuda.synchronize()


@cache
def _stream() -> torch.cuda.Stream:
    """Captures have a stream of their own: the default one cannot be captured."""
    return torch.cuda.Stream()  # type: ignore[no-untyped-call]


@cache
def _pool() -> Any:
    return torch.cuda.graph_pool_handle()
