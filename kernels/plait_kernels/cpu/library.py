"""The compiled ops behind ctypes."""

import ctypes
import struct
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from plait_kernels.segments import Segments
from plait_kernels.storage import Slots

DTYPES = {torch.float32: 0, torch.bfloat16: 1}
"""Codes of the dtypes that the compiled ops know."""

STEP = "8q"
"""Fields of ``step_fields``."""


class Library:
    """The shared library at ``path``, at first with as many threads as torch has."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        self.lanes = int(self._library.plait_lanes())
        self._threads = 0
        self._listener: Callable[[int, bytes], None] | None = None
        self.set_threads(torch.get_num_threads())

    def op(self, name: str, fields: str) -> Callable[..., None]:
        """The op as a function of its fields in order: ``q`` an integer or a pointer, ``d`` a float."""
        function = self._library[f"plait_{name}"]
        function.argtypes = (ctypes.c_char_p,)
        function.restype = None
        pack = struct.Struct("=" + fields).pack
        address = ctypes.cast(function, ctypes.c_void_p).value or 0

        def call(*values: float) -> None:
            # One packed argument instead of many: ctypes converts each one for about 100 ns.
            arguments = pack(*values)
            function(arguments)
            if self._listener is not None:
                self._listener(address, arguments)

        return call

    def listen(self, listener: Callable[[int, bytes], None] | None) -> None:
        """From now on tell ``listener`` of every call: the op's address and its packed arguments."""
        self._listener = listener

    def replay(self, calls: list[tuple[int, bytes]]) -> Callable[[], None]:
        """All the calls as one."""
        addresses = (ctypes.c_void_p * len(calls))(*(address for address, _ in calls))
        arguments = (ctypes.c_char_p * len(calls))(*(packed for _, packed in calls))
        count = ctypes.c_int64(len(calls))
        function = self._library.plait_replay
        return lambda: function(count, addresses, arguments) and None

    def set_threads(self, threads: int) -> None:
        """How many threads work on a call, the caller included. Nothing is done where nothing changes."""
        if threads != self._threads:
            self._library.plait_set_threads(ctypes.c_int64(threads))
            self._threads = threads


def step_fields(view: Tensor, slots: Slots, segments: Segments) -> tuple[int, ...]:
    """A scan's step as the C++ ``Step``. ``slots`` and ``segments`` must live until the call has returned."""
    chunks = len(segments.chunks)
    return (
        segments.tokens,
        segments.decodes,
        chunks,
        segments.chunk_table.data_ptr() if chunks else 0,
        slots.rows.data_ptr(),
        0 if slots.emits is None else slots.emits.data_ptr(),
        view.data_ptr(),
        view.stride(0),
    )


def step_fits(view: Tensor, slots: Slots) -> bool:
    """Whether addresses lie in memory as the compiled scans read them."""
    rows, emits = slots.rows, slots.emits
    return (
        rows.dtype == torch.int32
        and rows.is_contiguous()
        and (emits is None or (emits.dtype == torch.int32 and emits.is_contiguous()))
        and view.dtype in DTYPES
    )


def pointer(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()
