"""Time and ceilings of a GPU."""

import statistics

import torch

from plait_kernels.cuda.timing import elapsed, seconds_each


def copy_bandwidth(n_bytes: int = 4 << 30) -> float:
    """Bytes read and written each second by a large copy, launched as it is. The same copy in a graph is no ceiling: on
    an H200 it makes 2.75 TB/s, where kernels reach 4.46."""
    source = torch.empty(n_bytes, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    target.copy_(source)
    return 2 * n_bytes / statistics.median(elapsed(lambda: target.copy_(source), 4) for _ in range(5))


def product_rate(n: int = 8192) -> float:
    """bf16 floating-point operations each second of a large matrix product on random values."""
    a, b = (torch.randn(n, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    return 2 * n**3 / seconds_each([lambda: a @ b])
