"""A call of an op that can be made again, as often as is wanted, with the memory that it writes as it was before."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from plait_kernels.storage import Pages, Slots

BLOCK_BYTES = 32 << 20
"""Numbers that memory is filled with repeat after so many bytes."""
SCALE = 0.25
"""Standard deviation of these numbers."""
COMPARED_UNITS = 32
"""Pages, or rows of slots, whose contents are compared; outputs are compared whole."""
CLOSE, CLOSE_16_BITS = 0.01, 0.1
"""Errors that rounding explains, of single numbers; the second where numbers of 16 bits go in."""


@dataclass(frozen=True)
class OpCall:
    """``op(*args, **options)``, which gives one tensor and may write the arena through views."""

    op: Callable[..., Tensor]
    args: tuple[Any, ...]
    options: dict[str, Any]

    def __call__(self) -> Tensor:
        return self.op(*self.args, **self.options)

    @property
    def values(self) -> tuple[Any, ...]:
        return (*self.args, *self.options.values())

    def read(self, arena: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """The views of ``arena`` among the arguments, each with the units (int64 granules) that the call may read."""
        return self._units(arena, _read)

    def written(self, arena: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Each with the units that the call writes."""
        return self._units(arena, _written)

    def _units(self, arena: Tensor, of: Callable[[Pages | Slots], Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        units = [of(value) for value in self.values if isinstance(value, Pages | Slots)]
        for value in self.values:
            if isinstance(value, Tensor) and _within(value, arena):
                yield from ((value, some) for some in units)


class Truth:
    """What a call gives, and leaves in memory, now."""

    def __init__(self, call: OpCall, arena: Tensor) -> None:
        self._call = call
        for view, units in call.read(arena):
            fill(view, units)
        self._written = tuple(call.written(arena))
        self._expected = self._run()

    @property
    def finite(self) -> bool:
        """Whether it can be compared with at all."""
        return all(bool(tensor.isfinite().all()) for tensor in self._expected)

    @property
    def limit(self) -> float:
        """The largest ``error`` of a call that is right."""
        floats = (value for value in self._call.values if isinstance(value, Tensor) and value.is_floating_point())
        return CLOSE_16_BITS if any(value.element_size() == 2 for value in floats) else CLOSE

    def error(self) -> float:
        """Of the same call as it is made now: its largest difference, in units of what it should be there and of what
        is usual in that row. Infinite where something is missing."""
        return max(map(_error, self._run(), self._expected))

    def _run(self) -> list[Tensor]:
        for view, units in self._written:
            fill(view, units)
        out = self._call()
        return [out.float(), *(view[units[:COMPARED_UNITS]].float() for view, units in self._written)]


def fill(view: Tensor, units: Tensor) -> None:
    """Put numbers into ``view[units]``, the same each time: small, and of both signs."""
    row_bytes = view[0].numel() * view.element_size()
    rows = max(1, min(len(units), BLOCK_BYTES // max(1, row_bytes)))
    generator = torch.Generator(view.device).manual_seed(0)
    block = torch.randn(rows, *view.shape[1:], generator=generator, device=view.device).mul_(SCALE).to(view.dtype)
    for some in torch.split(units, rows):
        view[some] = block[: len(some)]


def _error(seen: Tensor, expected: Tensor) -> float:
    if not expected.numel():
        return 0.0
    usual = expected.square().mean(-1, keepdim=True).sqrt()
    usual = torch.maximum(usual, 1e-2 * expected.square().mean().sqrt()).clamp(min=1e-20)
    return float(((seen - expected).abs() / (usual + expected.abs())).nan_to_num(nan=float("inf")).max())


def _read(value: Pages | Slots) -> Tensor:
    return _distinct(value.table) if isinstance(value, Pages) else _written(value)


def _written(value: Pages | Slots) -> Tensor:
    if isinstance(value, Pages):
        return _distinct(value.write_pages)
    return _distinct(value.rows if value.emits is None else torch.cat((value.rows, value.emits)))


def _distinct(units: Tensor) -> Tensor:
    """int64, in order; a negative number is none."""
    distinct: Tensor = torch.unique(units)
    return distinct[distinct >= 0].long()


def _within(value: Tensor, arena: Tensor) -> bool:
    return value.device == arena.device and value.untyped_storage().data_ptr() == arena.untyped_storage().data_ptr()
