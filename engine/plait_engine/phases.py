"""How long the parts of a start took."""

import os
import time
from pathlib import Path


class Phases:
    """Parts follow one another from ``begin`` on: ``over`` names the one that ends now."""

    def __init__(self, begin: float | None = None) -> None:
        self._begin = self._last = time.perf_counter() if begin is None else begin
        self._parts: list[tuple[str, float]] = []

    def over(self, name: str) -> None:
        now = time.perf_counter()
        self._parts.append((name, now - self._last))
        self._last = now

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in self._parts)
        return f"{self._last - self._begin:.1f} s: {parts}"


def process_began() -> float:
    """When this process was started, by ``time.perf_counter``; now, where the system does not tell."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, AttributeError, IndexError):
        age = 0.0
    return time.perf_counter() - max(0.0, age)
