"""Which parameter, or which slice of one, each tensor of a checkpoint fills."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass

from torch import Tensor, nn


@dataclass(frozen=True)
class Target:
    """One tensor of a checkpoint: its name, the shape it must have, and what puts it in its place.

    ``store`` copies straight into the parameter, converting its dtype, so that no second copy of the weights exists.
    """

    name: str
    shape: tuple[int, ...]
    store: Callable[[Tensor], object]


class Packed(nn.Module, ABC):
    """A module whose parameters are not simply named and shaped as in the checkpoint."""

    @abstractmethod
    def targets(self, parent: str, present: Container[str]) -> Iterator[Target]:
        """``parent`` is the checkpoint's name for the module that this one is part of, with its dot; ``present`` are
        the checkpoint's tensors, for those that have more than one spelling."""


def targets_of(module: nn.Module, prefix: str, present: Container[str]) -> Iterator[Target]:
    """All tensors that fill ``module``; its paths are the checkpoint's behind ``prefix``."""
    for path, part in module.named_modules():
        if isinstance(part, Packed):
            head, dot, _ = path.rpartition(".")
            yield from part.targets(prefix + head + dot, present)
            continue
        for name, parameter in part.named_parameters(recurse=False):
            full = f"{prefix}{path}.{name}" if path else prefix + name
            yield Target(full, tuple(parameter.shape), parameter.data.copy_)
