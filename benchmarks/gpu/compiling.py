"""Compiling Triton kernels for a GPU without launching them: the GPU need not be there.

``compile_only`` turns every launch into a compilation, so whatever a case would launch is compiled, for the shapes
and the strides that it would have. The results land in Triton's cache on disk, where a later launch finds them.
"""

import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.experimental.gluon._runtime import GluonASTSource
from triton.runtime import jit

from plait_kernels import early_start, triton_math, tuning

SHARED_LIMIT_BYTES = {90: 232448, 80: 166912, 89: 101376}
"""Of one program, by compute capability."""

ASSUMED = {90: ("h200", 132), 80: ("a100-sxm4-80gb", 108), 89: ("geforce-rtx-4090", 128)}
"""Table of configurations and number of multiprocessors: how work is split is part of what is compiled."""

CPU = torch.device("cpu")


@dataclass
class Compiled:
    """What was compiled: name, options and size of each kernel; and what went wrong."""

    capability: int
    kernels: list[dict[str, Any]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)


@contextmanager
def compile_only(capability: int = 90) -> Iterator[Compiled]:
    """Launches inside compile for ``capability`` and do nothing else; failures are collected, not raised."""
    target = GPUTarget("cuda", capability, 32)
    backend = make_backend(target)
    found = Compiled(capability)
    binders: dict[Any, Any] = {}

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        del grid, warmup
        kwargs["debug"] = False
        kwargs["instrumentation_mode"] = triton.knobs.compilation.instrumentation_mode
        if self not in binders:
            binders[self] = jit.create_function_from_signature(self.signature, self.params, backend)
        bound, specialization, options = binders[self](*args, **kwargs)
        key = f"{self.__name__} {specialization} {options}"
        if key in found.seen:
            return
        found.seen.add(key)
        options, signature, constants, attributes = self._pack_args(backend, kwargs, bound, specialization, options)
        numbers = {k: v for k, v in kwargs.items() if isinstance(v, int | str)}
        try:
            source = GluonASTSource if self.is_gluon() else ASTSource
            kernel = triton.compile(
                source(self, signature, constants, attributes), target=target, options=options.__dict__
            )
        except Exception as error:
            found.failures.append(f"{self.__name__} {numbers}: {type(error).__name__}: {str(error)[:2000]}")
            return
        shared = kernel.metadata.shared
        found.kernels.append({"name": self.__name__, "shared": shared, "cubin": kernel.asm["cubin"], **numbers})
        if shared > SHARED_LIMIT_BYTES.get(capability, 1 << 30):
            found.failures.append(f"{self.__name__} {numbers}: {shared} bytes of shared memory")

    before = jit.JITFunction.run, tuning._slugs[CPU], triton_math._multiprocessors[CPU], early_start._known[CPU]
    jit.JITFunction.run = run
    tuning._slugs[CPU], triton_math._multiprocessors[CPU] = ASSUMED[capability]
    early_start._known[CPU] = capability >= 90
    try:
        yield found
    finally:
        jit.JITFunction.run, tuning._slugs[CPU], triton_math._multiprocessors[CPU], early_start._known[CPU] = before


def instructions(cubin: bytes) -> Counter[str]:
    """How often the machine code has each instruction, by its name without suffixes: ``STL`` writes spilled registers.

    Read with the disassembler that Triton brings.
    """
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "--dump-sass", file.name]
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    words = (line.partition("*/")[2].split() for line in lines if line.lstrip().startswith("/*"))
    names = (next((word for word in line if not word.startswith("@")), "") for line in words)
    return Counter(name.rstrip(";").split(".")[0] for name in names)
