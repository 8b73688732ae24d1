"""``plait profile``: a table for each load."""

import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from plait_engine.config import EngineConfig
from plait_engine.profiling.load import ProfileLoad
from plait_engine.profiling.profile import LoadProfile, ModelProfile, profile_model
from plait_server.cli.offline import status_of

DEFAULT_LOADS = ("decode:1x512", "decode:16x512", "prefill:1x1024")
MOST_KERNELS = 16


def print_profile(config: EngineConfig, loads: list[str] | None, trace: Path | None) -> int:
    def report() -> bool:
        wanted = [ProfileLoad.parse(text) for text in loads or DEFAULT_LOADS]
        console = Console()
        result = profile_model(config, wanted, trace, lambda line: print(line, file=sys.stderr))
        ceilings = result.ceilings
        console.print(
            f"a copy moves {ceilings.bandwidth / 1e9:,.1f} GB/s, "
            f"a product does {ceilings.arithmetic / 1e12:,.2f} TFLOP/s"
        )
        for each in result.loads:
            console.print(heading(each, result))
            console.print(table_of(each))
        return True

    return status_of(report)


def heading(of: LoadProfile, model: ModelProfile) -> str:
    least = of.least.seconds(model.ceilings)
    what = "step" if of.load.kind == "decode" else "all"
    return (
        f"\n{of.load}: {what} {milliseconds(of.step)} as served, host {milliseconds(of.host)} of a step, "
        f"least {milliseconds(least)} ({of.least.n_bytes / 1e6:,.0f} MB, {of.least.operations / 1e9:,.1f} GFLOP): "
        f"{of.step / least:.1f} x that"
    )


def table_of(of: LoadProfile) -> Table:
    """Layers by kind, ops in them, and on a GPU the kernels of a step as it is served."""
    table = Table("part", "ms a step", "calls")
    kernels = [(f"kernel {name[:60]}", *rest) for name, rest in by_time(of.kernels)[:MOST_KERNELS]]
    for name, seconds, calls in [*((name, *rest) for name, rest in by_time(of.parts)), *kernels]:
        table.add_row(name, f"{1e3 * seconds:.3f}", f"{calls:g}")
    return table


def by_time(parts: dict[str, tuple[float, float]]) -> list[tuple[str, tuple[float, float]]]:
    """Layers first, then what takes longest."""
    return sorted(parts.items(), key=lambda item: (not item[0].startswith("layer"), -item[1][0]))


def milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:,.2f} ms"
