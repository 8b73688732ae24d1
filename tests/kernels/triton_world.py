"""Where Triton kernels are tested: on the GPU if there is one, else under Triton's interpreter on the CPU.

Import this before anything that imports ``triton``. Tests lay out their memory on the CPU; ``on_device`` takes a
call to where the kernels run and brings back what they wrote, so that one test serves both.
"""

import importlib.util
import os
import sys
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

GPU = torch.cuda.is_available()

if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed", allow_module_level=True)
if not GPU:
    if "triton" in sys.modules and not os.environ.get("TRITON_INTERPRET"):
        pytest.skip("triton was imported before its interpreter was turned on", allow_module_level=True)
    os.environ["TRITON_INTERPRET"] = "1"

DEVICE = torch.device("cuda" if GPU else "cpu")


def mend_interpreter() -> None:
    """The interpreter turns one-element arrays into loop bounds, which NumPy 2.4 refuses; and it cuts fp32 down to bf16
    where a GPU rounds to the nearest, which doubles the error."""
    import triton.language as tl
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def mended(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = mended
    cast = interpreter.InterpreterBuilder.cast_impl

    def rounded(self: Any, source: Any, target: Any) -> Any:
        if source.dtype.scalar == tl.float32 and target.scalar == tl.bfloat16:
            values = torch.from_numpy(source.data.copy()).bfloat16().view(torch.uint16).numpy()
            return interpreter.TensorHandle(values, target.scalar)
        return cast(self, source, target)

    interpreter.InterpreterBuilder.cast_impl = rounded


if not GPU:
    mend_interpreter()


def on_device(op: Callable[..., Any]) -> Callable[..., Any]:
    """``op`` for tensors that lie on the CPU: on a GPU they are taken there, views into one storage as such."""
    if not GPU:
        return op

    def call(*args: Any, **kwargs: Any) -> Any:
        move = _Move()
        result = op(*(move.there(a) for a in args), **{name: move.there(a) for name, a in kwargs.items()})
        move.back()
        return move.here(result)

    return call


class _Move:
    """Storages of one call, on both sides."""

    def __init__(self) -> None:
        self._moved: dict[int, tuple[Tensor, Tensor]] = {}

    def there(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self._tensor(value)
        if isinstance(value, tuple) and any(isinstance(part, Tensor) for part in value):
            return tuple(map(self.there, value))
        if is_dataclass(value) and not isinstance(value, type):
            changed = {f.name: self.there(getattr(value, f.name)) for f in fields(value)}
            return replace(value, **changed)
        return value

    def _tensor(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if not storage.nbytes():
            return tensor.to(DEVICE)
        if storage.data_ptr() not in self._moved:
            raw = torch.empty(0, dtype=torch.uint8).set_(storage)  # type: ignore[call-overload]
            self._moved[storage.data_ptr()] = (raw, raw.to(DEVICE))
        copy = self._moved[storage.data_ptr()][1]
        moved = torch.empty(0, dtype=tensor.dtype, device=DEVICE)
        return moved.set_(copy.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride())  # type: ignore[call-overload, no-any-return]

    def back(self) -> None:
        torch.cuda.synchronize()
        for here, there in self._moved.values():
            here.copy_(there)

    def here(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.cpu()
        if isinstance(value, tuple):
            return tuple(map(self.here, value))
        if is_dataclass(value) and not isinstance(value, type):
            return replace(value, **{f.name: self.here(getattr(value, f.name)) for f in fields(value)})
        return value


MARKS = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # the interpreter's NumPy warns where a GPU gives infinity
    *([pytest.mark.gpu] if GPU else []),
]


def triton_kernels() -> Any:
    """``Kernels`` of Triton implementations, for tensors on the CPU."""
    from plait_kernels.select import Kernels
    from plait_kernels.triton_ops import IMPLEMENTATIONS

    return Kernels(**{name: on_device(op) for name, op in IMPLEMENTATIONS.items()})
