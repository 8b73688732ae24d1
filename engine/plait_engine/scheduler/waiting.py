"""The queue of sequences that do not run: new ones and preempted ones."""

import heapq
from collections.abc import Iterator

from plait_engine.sequence import Sequence


class WaitingQueue:
    """By priority, then arrival. A preempted sequence keeps its arrival, so it comes back before younger ones."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Sequence]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Sequence]:
        return (entry[-1] for entry in self._heap)

    def push(self, sequence: Sequence) -> None:
        heapq.heappush(self._heap, (*sequence.order, sequence))

    def peek(self) -> Sequence | None:
        return self._heap[0][-1] if self._heap else None

    def pop(self) -> Sequence:
        return heapq.heappop(self._heap)[-1]

    def first(self, n: int) -> list[Sequence]:
        """The first ``n`` in order."""
        return [entry[-1] for entry in heapq.nsmallest(n, self._heap)]

    def remove(self, sequence: Sequence) -> None:
        self._heap = [entry for entry in self._heap if entry[-1] is not sequence]
        heapq.heapify(self._heap)
