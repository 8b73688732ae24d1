"""A step that was recorded once and is run again as it is, without Python between its kernels."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


class NotReplayableError(Exception):
    """The step looked at a value on the way, so the next one may take another course."""


@dataclass(frozen=True)
class Recording(Generic[T]):
    """``run`` makes the recorded calls again, on whatever the input tensors hold now; ``result`` then holds what the
    step returned. Buffers in between belong to the recording."""

    result: T
    run: Callable[[], None]
