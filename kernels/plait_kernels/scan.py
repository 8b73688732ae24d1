"""How every scan walks a step: the decodes as one batch, then the chunk table row by row, the state carried along."""

from collections.abc import Callable, Iterator

from torch import Tensor

from plait_kernels.segments import Segments
from plait_kernels.storage import Slots

Put = Callable[[Tensor], None]


def scan_rows(view: Tensor, slots: Slots, segments: Segments) -> Iterator[tuple[slice, int, Tensor, Put]]:
    """Yields ``(tokens, rows, state, put)``: tokens of the flat batch that split evenly over ``rows`` sequences, the
    state ``[rows, *inner]`` in front of each, and where to hand in the state behind them before going on.

    All decodes come as one piece of one token a row. The state of a chunk is read from the sequence's slot at its
    first row, written back after its last, and emitted where ``slots.emits`` names an address.
    """
    if segments.decodes:
        rows = slots.rows[: segments.decodes].long()
        yield slice(0, segments.decodes), segments.decodes, view[rows], lambda state: _put(view, rows, state)
    emits = [-1] * len(segments.chunks) if slots.emits is None else slots.emits.tolist()
    carried: list[Tensor] = []
    for i, chunk in enumerate(segments.chunks):
        own = slots.rows[chunk.sequence : chunk.sequence + 1].long()
        follows = i > 0 and segments.chunks[i - 1].sequence == chunk.sequence
        before = carried.pop() if follows else view[own]
        yield slice(chunk.start, chunk.end), 1, before, carried.append
        if emits[i] >= 0:
            view[emits[i]] = carried[-1][0].to(view.dtype)
        if i + 1 == len(segments.chunks) or segments.chunks[i + 1].sequence != chunk.sequence:
            _put(view, own, carried.pop())


def _put(view: Tensor, rows: Tensor, state: Tensor) -> None:
    view[rows] = state.to(view.dtype)
