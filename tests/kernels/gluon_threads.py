"""A small interpreter for Gluon kernels with specialized warps, which Triton's does not run: a thread for each role.

Layouts mean nothing here, and a group of warps is one thread: it shows whether barriers, phases, addresses and sums are
right, not whether warps of one group race. What runs by itself on a GPU runs as late as it may: products and stores of
the copy engine when they are waited for, what it fetches after a random while.
"""

import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from tests.kernels.gluon_memory import Barrier, Barriers, Pointer, Shared

LAYOUTS = (
    "NVMMADistributedLayout",
    "DotOperandLayout",
    "SliceLayout",
    "BlockedLayout",
    "DistributedLinearLayout",
)


def nothing(*_args: Any, **_named: Any) -> None:
    """Of layouts, fences, and barriers among the threads of one role."""


class Product:
    """Of a left operand as it was and a right one as it is when the result is waited for."""

    def __init__(self, a: Tensor, b: Shared, acc: Tensor, use_acc: bool) -> None:
        assert a.dtype == b.tensor.dtype, "operands of one kind"
        self.done: Tensor | None = None
        self.parts = (a.float(), b.tensor, acc if use_acc else torch.zeros_like(acc))

    def finish(self) -> None:
        a, b, acc = self.parts
        self.done = acc + a @ b.float()


class Role(threading.local):
    """What a thread has under way."""

    def __init__(self) -> None:
        self.products: list[Product] = []
        self.stores: list[Callable[[], None]] = []
        self.program = (0, 0, 0)


class Machine:
    """Stands for ``gl``, ``mbarrier`` and ``tma`` in the kernel's module."""

    def __init__(self, grid: tuple[int, ...]) -> None:
        self.grid, self.role = grid, Role()
        self.random = random.Random(0)
        self.failures: list[BaseException] = []

    def load(self, pointer: Pointer, mask: Any = None, other: Any = 0) -> Tensor:
        at, live = pointer.places(mask, torch.Size())
        found = torch.full(at.shape, other, dtype=pointer.base.dtype)
        found[live] = pointer.flat()[at[live]]
        return found

    def store(self, pointer: Pointer, value: Tensor, mask: Any = None) -> None:
        at, live = pointer.places(mask, value.shape)
        assert value.dtype == pointer.base.dtype
        pointer.flat()[at[live]] = value[live]

    def allocate(self, dtype: Any, shape: list[int], _layout: Any) -> Any:
        if dtype is torch.int64:
            return Barriers([Barrier() for _ in range(shape[0])])
        return Shared(torch.full(shape, float("nan"), dtype=dtype))

    def init(self, barrier: Barrier, count: int) -> None:
        barrier.count = barrier.left = count

    def fetch(self, source: Any, coordinates: list[Any], barrier: Barrier, target: Shared) -> None:
        """Zeros where the tensor ends."""
        wanted = [slice(int(c), int(c) + n) for c, n in zip(coordinates, source.block_shape, strict=True)]
        assert list(target.tensor.shape) == source.block_shape
        base = source.base.as_strided(source.shape, source.strides)

        def later() -> None:
            time.sleep(self.random.random() * 1e-3)
            found = base[tuple(wanted)]
            target.tensor.zero_()
            target.tensor[tuple(slice(0, n) for n in found.shape)] = found
            barrier.change(0, -target.tensor.nbytes)

        threading.Thread(target=later).start()

    def bring(self, target: Any, coordinates: list[Any], source: Shared) -> None:
        wanted = [slice(int(c), int(c) + n) for c, n in zip(coordinates, target.block_shape, strict=True)]
        base = target.base.as_strided(target.shape, target.strides)
        self.role.stores.append(lambda: base[tuple(wanted)].copy_(source.tensor))

    def store_wait(self, left: int) -> None:
        while len(self.role.stores) > left:
            self.role.stores.pop(0)()

    def multiply(self, a: Tensor, b: Shared, acc: Tensor, *, use_acc: bool = True, is_async: bool) -> Product:
        assert is_async
        product = Product(a, b, acc, use_acc)
        self.role.products.append(product)
        return product

    def multiply_wait(self, left: int, deps: list[Product]) -> Any:
        while len(self.role.products) > left:
            self.role.products.pop(0).finish()
        assert all(product.done is not None for product in deps), "waited for too little"
        return deps[0].done if len(deps) == 1 else tuple(product.done for product in deps)

    def warp_specialize(self, roles: list[Any], warps: list[int], registers: list[int]) -> None:
        assert len(warps) == len(registers) == len(roles) - 1
        program = self.role.program

        def play(function: Any, args: tuple[Any, ...]) -> None:
            self.role.program = program
            try:
                function(*args)
                assert self.role.products == self.role.stores == [], "ended with something under way"
            except BaseException as failure:
                self.failures.append(failure)

        threads = [threading.Thread(target=play, args=role) for role in roles]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.failures:
            raise self.failures[0]

    def gl(self) -> SimpleNamespace:
        return SimpleNamespace(
            **dict.fromkeys(LAYOUTS, nothing),
            float32=torch.float32, int32=torch.int32, int64=torch.int64, constexpr=None,
            load=self.load, store=self.store, allocate_shared_memory=self.allocate,
            program_id=lambda axis: self.role.program[axis], num_programs=lambda axis: self.grid[axis],
            warp_specialize=self.warp_specialize, thread_barrier=nothing, static_range=range,
            arange=lambda start, end, _layout: torch.arange(start, end), expand_dims=torch.unsqueeze,
            full=lambda shape, value, dtype, _layout: torch.full(shape, value, dtype=dtype),
            convert_layout=lambda x, _layout: x, split=lambda x: x.unbind(-1), where=torch.where,
            zeros_like=torch.zeros_like, broadcast=lambda a, b: torch.broadcast_tensors(torch.as_tensor(a), b),
            inline_asm_elementwise=lambda _asm, _constraints, args, *_rest, **_more: args[0],
        )  # fmt: skip

    def module(self) -> dict[str, Any]:
        return {
            "gl": self.gl(),
            "mbarrier": SimpleNamespace(
                MBarrierLayout=nothing,
                init=self.init,
                wait=lambda barrier, parity: barrier.wait(parity),
                expect=lambda barrier, count: barrier.change(1, count),
                arrive=lambda barrier, count: barrier.change(count, 0),
            ),
            "tma": SimpleNamespace(
                async_copy_global_to_shared=self.fetch,
                async_copy_shared_to_global=self.bring,
                store_wait=self.store_wait,
            ),
            "warpgroup_mma": self.multiply,
            "warpgroup_mma_wait": self.multiply_wait,
            "fence_async_shared": nothing,
        }


class Launcher:
    """``kernel[grid](...)``, one program after another."""

    def __init__(self, module: ModuleType, kernel: Any) -> None:
        self.module, self.kernel = module, kernel

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*args: Any, **constants: Any) -> None:
            machine = Machine(grid)
            del constants["num_warps"]
            given = [Pointer(arg) if isinstance(arg, Tensor) else arg for arg in args]
            functions = {name: f.fn for name, f in vars(self.module).items() if hasattr(f, "fn")}
            numbers = {name: f.value for name, f in vars(self.module).items() if hasattr(f, "value")}
            with mock.patch.multiple(self.module, **functions, **numbers, **machine.module()):
                for machine.role.program in itertools.product(*map(range, grid)):  # type: ignore[misc]
                    self.kernel.fn(*given, **constants)

        return launch


@contextmanager
def in_threads(module: ModuleType, name: str) -> Iterator[None]:
    """The kernel ``name`` of ``module`` runs here."""
    with mock.patch.object(module, name, Launcher(module, getattr(module, name))):
        yield
