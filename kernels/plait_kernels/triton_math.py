# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,no-any-return"
"""Small functions that Triton kernels share, and what their launchers ask of tensors and devices.

Only GPU implementations import this module: it needs ``triton``.
"""

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))
"""Triton's interpreter keeps bf16 as raw 16-bit integers and would multiply those, so ``dot`` widens them first."""

LOG2_E = tl.constexpr(1.4426950408889634)
MINUS_INFINITY = tl.constexpr(float("-inf"))
SMALLEST_LOG_DECAY = tl.constexpr(-200.0)
"""Its exponential is 0 in fp32; less would only spoil the sums that it is part of."""

WARP = 32
"""Threads that run together."""
TENSOR_CORE_ROWS = 16
"""The least extent of a matrix in ``tl.dot``."""


def power_of_two(n: int, least: int = 1) -> int:
    """The smallest power of two that holds n."""
    return max(least, 1 << max(0, n - 1).bit_length())


_multiprocessors: dict[torch.device, int] = {torch.device("cpu"): 4}
"""What is known so far. A CPU (under the interpreter) counts as few, so that tests take the paths that split work."""


def multiprocessors(device: torch.device) -> int:
    if device not in _multiprocessors:
        _multiprocessors[device] = torch.cuda.get_device_properties(device).multi_processor_count
    return _multiprocessors[device]


COUNTERS = 1 << 16


@functools.cache
def counters(device: torch.device) -> Tensor:
    """int32 zeros for programs that count how many of them are done: whoever uses one leaves it at zero.

    One for all kernels of a device, so kernels that use it must run one after another, on one stream.
    """
    return torch.zeros(COUNTERS, dtype=torch.int32, device=device)


def rows_of(x: Tensor) -> Tensor:
    """``[..., n]`` as ``[rows, n]`` with neighbouring channels side by side; copies only what cannot be viewed."""
    x = x.reshape(-1, x.shape[-1])
    return x if x.stride(-1) == 1 else x.contiguous()


def dense_last(x: Tensor) -> Tensor:
    """x with stride 1 in its last dimension; the others may be whatever they are."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def dot_precision(dtype: torch.dtype) -> str:
    """How products of fp32 matrices are taken: exactly for fp32 models, never in TF32 behind their back."""
    return "ieee" if dtype == torch.float32 else "tf32"


@triton.jit
def dot(a, b, PRECISION: tl.constexpr):
    """``a @ b`` summed in fp32."""
    if INTERPRETED:
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, input_precision=PRECISION)


@triton.jit
def onto(total, a, b, PRECISION: tl.constexpr):
    """``total + a @ b`` summed in fp32."""
    if INTERPRETED:
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, total, input_precision=PRECISION)


@triton.jit
def fast_exp2(x):
    """2^x; 0 where that is less than 2^-126, for which ``tl.exp2`` takes three instructions more."""
    if INTERPRETED:
        return tl.exp2(x)
    return tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)


@triton.jit
def softplus(x):
    """``log(1 + e^x)``; itself beyond 20, as PyTorch has it; a series where 1 + e^x would round to 1."""
    e = tl.exp(tl.minimum(x, 20.0))
    small = e * (1.0 - 0.5 * e)
    return tl.where(x > 20.0, x, tl.where(e < 1e-3, small, tl.log(1.0 + e)))


@triton.jit
def sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def silu(x):
    return x * sigmoid(x)


@triton.jit
def tanh(x):
    return 2.0 * sigmoid(2.0 * x) - 1.0


@triton.jit
def gelu_tanh(x):
    """The tanh approximation of GELU; ``0.5 (1 + tanh z)`` is ``sigmoid(2 z)``."""
    return x * sigmoid(1.5957691216057308 * x * (1.0 + 0.044715 * x * x))


@triton.jit
def running_log(log_decay):
    """Running sums of log decays ``[BLOCK]`` and their total, each as a pair (high, low) of fp32.

    Summed in fp64: a difference of two running sums then keeps the small decays behind a large one.
    """
    exact = tl.cumsum(log_decay.to(tl.float64), 0)
    high = exact.to(tl.float32)
    low = (exact - high.to(tl.float64)).to(tl.float32)
    total = tl.sum(log_decay.to(tl.float64), 0)
    total_high = total.to(tl.float32)
    return high, low, total_high, (total - total_high.to(tl.float64)).to(tl.float32)


@triton.jit
def arrive(counter, programs):
    """Whether this is the last of ``programs`` programs to get here. What all of them stored before is then visible to
    loads that bypass the first-level cache (``.cg``), and what they read is no longer needed."""
    tl.debug_barrier()
    last = tl.atomic_add(counter, 1, sem="acq_rel") == programs - 1
    if last:
        tl.store(counter, 0)
    tl.debug_barrier()
    return last


@triton.jit
def convolved(x, weight, bias, window, c, live, dtype: tl.constexpr, BIASED: tl.constexpr, WIDTH: tl.constexpr):
    """One token of the causal convolution for channels ``c``, through SiLU, rounded to ``dtype``; the window is left.

    ``x`` is the token's row, ``weight`` ``[channels, WIDTH]``, ``window`` the slot's ``[channels, WIDTH - 1]``.
    """
    fresh = tl.load(x + c, mask=live, other=0.0).to(window.dtype.element_ty).to(tl.float32)
    total = fresh * tl.load(weight + c * WIDTH + WIDTH - 1, mask=live, other=0.0).to(tl.float32)
    if BIASED:
        total += tl.load(bias + c, mask=live, other=0.0).to(tl.float32)
    for j in tl.static_range(WIDTH - 1):
        old = tl.load(window + c * (WIDTH - 1) + j, mask=live, other=0.0).to(tl.float32)
        total += old * tl.load(weight + c * WIDTH + j, mask=live, other=0.0).to(tl.float32)
    return silu(total).to(dtype).to(tl.float32)


@triton.jit
def shift_window(x, window, c, live, WIDTH: tl.constexpr):
    """Drop the window's oldest entry and append the token's own."""
    for j in tl.static_range(1, WIDTH - 1):
        old = tl.load(window + c * (WIDTH - 1) + j, mask=live)
        tl.store(window + c * (WIDTH - 1) + j - 1, old, mask=live)
    fresh = tl.load(x + c, mask=live, other=0.0)
    tl.store(window + c * (WIDTH - 1) + WIDTH - 2, fresh.to(window.dtype.element_ty), mask=live)
