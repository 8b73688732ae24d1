"""What a tiny engine runs on: a device, an implementation of every op, dtypes, and how recorded steps are replayed."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor

from plait_kernels.recording import Recording
from plait_kernels.select import OPS, Kernels, select

T = TypeVar("T")


class Replay(StrEnum):
    """How a step that can be recorded runs."""

    NEVER = "eager"
    """As it is, only padded."""
    AGAIN = "again"
    """By calling the model again, on the tensors that a recording would read: what replaying must equal to the bit."""
    RECORDED = "recorded"
    """As serving does: a captured graph on a GPU, a tape of compiled calls on a CPU."""


class Again(Kernels):
    """Kernels whose recordings are the step itself."""

    def record(self, step: Callable[[], T], known: bool = False) -> Recording[T]:  # noqa: ARG002
        result = step()
        assert isinstance(result, Tensor)

        def again() -> None:
            result.copy_(step())  # type: ignore[arg-type]

        return Recording(result, again)


@dataclass(frozen=True)
class Rig:
    """``implementation``: reference, cpu (compiled) or triton. ``piece_tokens``: see ``StepGraphs``."""

    device_name: str = "cpu"
    implementation: str = "reference"
    dtype: torch.dtype = torch.float32
    replay: Replay = Replay.NEVER
    piece_tokens: int = 0

    @property
    def device(self) -> torch.device:
        return torch.device(self.device_name)

    @property
    def kernels(self) -> Kernels:
        return _kernels(self.implementation, self.replay)

    @property
    def alone(self) -> "Rig":
        """ORACLE's: nothing recorded."""
        return replace(self, replay=Replay.NEVER, piece_tokens=0)

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        pieces = f"-pieces{self.piece_tokens}" if self.piece_tokens else ""
        return f"{self.device_name}-{self.implementation}-{dtype}-{self.replay}{pieces}"


REFERENCE = Rig()


@cache
def _kernels(implementation: str, replay: Replay) -> Kernels:
    if implementation == "reference":
        ops: dict[str, Any] = {}
    elif implementation == "cpu":
        compiled = select(torch.device("cpu"), torch.float32)
        compiled.wait()
        if not compiled.compiled:
            pytest.skip(f"no compiled kernels here: {compiled.choices['linear'].reason}")
        if replay is Replay.RECORDED:
            return compiled
        ops = {name: getattr(compiled, name) for name in OPS}
    else:
        ops = _triton_ops()
    if replay is Replay.AGAIN:
        return Again(**ops)
    return Kernels(**ops, graphs=implementation == "triton" and replay is Replay.RECORDED)


def _triton_ops() -> dict[str, Any]:
    if not torch.cuda.is_available():
        import tests.kernels.triton_world  # noqa: F401  (turns the interpreter on)
    from plait_kernels.qk_rotary.triton import qk_rotary
    from plait_kernels.triton_ops import IMPLEMENTATIONS

    return {**IMPLEMENTATIONS, "qk_rotary": qk_rotary}
