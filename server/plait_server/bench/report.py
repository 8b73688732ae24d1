"""What was measured, as numbers for programs and as a table for people."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from rich.table import Table

from plait_server.bench.target import Measured

PERCENTILES = (50, 90, 95, 99)


def report(measured: Sequence[Measured], seconds: float) -> dict[str, Any]:
    """``seconds``: from the first request to the last answer. Times are seconds."""
    good = [each for each in measured if each.error is None]
    firsts = [each.arrivals[0] for each in good if each.arrivals]
    gaps = [after - before for each in good for before, after in pairwise(each.arrivals)]
    inputs, outputs = (sum(each.input_tokens for each in good), sum(each.output_tokens for each in good))
    cached = sum(each.cached_tokens for each in good)
    return {
        "seconds": seconds,
        "requests": {"completed": len(good), "failed": len(measured) - len(good)},
        "errors": dict(Counter(each.error for each in measured if each.error is not None).most_common(10)),
        "tokens": {"input": inputs, "output": outputs, "cached": cached},
        "per_second": {"requests": len(good) / seconds, "input": inputs / seconds, "output": outputs / seconds},
        "cached_share": cached / inputs if inputs else 0.0,
        "time_to_first_token": spread(firsts),
        "inter_token": spread(gaps),
        "end_to_end": spread([each.seconds for each in good]),
    }


def spread(values: Sequence[float]) -> dict[str, float] | None:
    """None when there is nothing to tell."""
    if not values:
        return None
    found = np.percentile(values, PERCENTILES)
    percentiles = {f"p{name}": float(value) for name, value in zip(PERCENTILES, found, strict=True)}
    return {"mean": float(np.mean(values)), "min": min(values), **percentiles, "max": max(values)}


def table(numbers: dict[str, Any]) -> Table:
    names = ("mean", *(f"p{percentile}" for percentile in PERCENTILES), "max")
    shown = Table("milliseconds", *names)
    for key in ("time_to_first_token", "inter_token", "end_to_end"):
        values = numbers[key]
        shown.add_row(key.replace("_", " "), *(f"{values[name] * 1_000:.1f}" if values else "" for name in names))
    return shown


def lines(numbers: dict[str, Any]) -> list[str]:
    requests, tokens, rates = numbers["requests"], numbers["tokens"], numbers["per_second"]
    told = [
        f"{requests['completed']} requests in {numbers['seconds']:.1f} s, {requests['failed']} failed",
        f"a second: {rates['requests']:.2f} requests, {rates['input']:.0f} input, {rates['output']:.0f} output tokens",
        f"{tokens['cached']} of {tokens['input']} input tokens were cached ({numbers['cached_share']:.0%})",
    ]
    return told + [f"failed {count} times: {error}" for error, count in numbers["errors"].items()]
